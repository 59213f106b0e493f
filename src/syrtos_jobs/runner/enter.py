"""Makes a process part of an instance, and runs a command.

The instance has its own ``/opt/ml``, host name and ``/etc/hosts``.

`python -m syrtos_jobs.runner.enter SPEC COMMAND ...`, below `python -m syrtos_jobs.runner.enter
--as-root AGENT ...`. The command replaces the process. With `--as-root --no-network` all below have
a network in which there is nothing but themselves. `--try` prints whether this kernel and user can
isolate an instance.

If the kernel lets users make namespaces (user_namespaces(7)), paths and names are as on SageMaker,
and each process of an instance mounts the same folders. If it does not, the command gets its
folders by variables.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import functools
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from syrtos.launch import events
from syrtos.launch.processes.signalling import die_with_parent
from syrtos.settings import FOR_WORKERS, environment

_NEW_MOUNTS, _NEW_NAMES, _NEW_USER = (
    0x00020000,
    0x04000000,
    0x10000000,
)  # CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_SET_FLAGS, _IS_UP = 0x8914, 1  # SIOCSIFFLAGS and IFF_UP of netdevice(7)
_READ_ONLY, _REMOUNT, _BIND, _MOVE, _RECURSIVE, _PRIVATE = (
    1,
    32,
    4096,
    8192,
    16384,
    1 << 18,
)  # MS_* of mount(2)
_RELATIVE_TIMES = 1 << 21
# The two answers of --try.
ISOLATED, NOT_ISOLATED = "instances are isolated here", "instances can't be isolated here"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceSpec:
    """The description of one instance.

    Attributes:
        name: the host's name.
        root: the folder that is to be ``/opt/ml``.
        isolated: whether to make namespaces.
        folder: the working directory of the command.
        hosts: a file to be ``/etc/hosts``.
        mounts: more folders of the host, by the paths that they are to have.
        fixed: paths that must not be written to.
        variables: environment variables to add.
        rank: the rank of a command that, unlike workers, does not report that it has started; None
            for workers.
        output: a file for the output of such a command.
    """

    name: str
    root: str
    isolated: bool
    folder: str
    hosts: str
    mounts: Mapping[str, str]
    fixed: tuple[str, ...]
    variables: Mapping[str, str]
    rank: int | None = None
    output: str = ""


def main() -> NoReturn:
    """Enters the instance and becomes the command."""
    if sys.argv[1] == "--try":
        print(ISOLATED if can_isolate() else NOT_ISOLATED)
        sys.exit()
    if sys.argv[1] == "--as-root":
        become_root()
        words = sys.argv[2:]
        if words[0] == "--no-network":
            words = words[1:]
            _leave_network()
        # again: the kernel has forgotten it with the change of user
        die_with_parent()
        os.execvp(words[0], words)
    spec = InstanceSpec(**json.loads(Path(sys.argv[1]).read_text()))
    if spec.isolated:
        _isolate(spec)
    env = {**environment(), **spec.variables}
    if spec.rank is not None:
        if "PMI_FD" in env:
            # only workers speak to the process manager
            os.close(int(env["PMI_FD"]))
        mpi = ("PMI_", "MPI_LOCAL")
        env = {
            name: value
            for name, value in env.items()
            if name not in FOR_WORKERS and not name.startswith(mpi)
        }
        events.report_start(2, spec.rank)
        _write_to(spec.output)
    os.chdir(spec.folder)
    try:
        os.execvpe(sys.argv[2], sys.argv[2:], env)
    except OSError as error:
        print(f"syrtos: {sys.argv[2]} can't be run: {error.strerror}.", file=sys.stderr, flush=True)
        os._exit(127)


def _leave_network() -> None:
    """Gives this process and its children a network with a loopback interface alone.

    Instances still meet by that interface.
    """
    unshare(_NEW_NETWORK)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _IS_UP))


def _write_to(output: str) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _isolate(spec: InstanceSpec) -> None:
    unshare(_NEW_MOUNTS | _NEW_NAMES)
    # else what is mounted here would be seen outside
    mount("none", "/", _RECURSIVE | _PRIVATE)
    socket.sethostname(spec.name)
    mount(spec.hosts, "/etc/hosts", _BIND)
    _mount_ml(spec.root)
    for path, folder in spec.mounts.items():
        os.makedirs(path, exist_ok=True)
        mount(folder, path, _BIND)
    for path in spec.fixed:
        # a mount of its own, since only whole mounts can be made read-only
        mount(path, path, _BIND)
        mount("none", path, _BIND | _REMOUNT | _READ_ONLY | _locked_flags(path))


def _locked_flags(path: str) -> int:
    """Returns the mount flags of a path that a user's own namespace may not clear."""
    # a remount without them is refused (mount_namespaces(7))
    found = os.statvfs(path).f_flag
    alike = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
    return (found & alike) | (_RELATIVE_TIMES if found & os.ST_RELATIME else 0)


def _mount_ml(root: str) -> None:
    """Mounts ``root`` at ``/opt/ml``."""
    # this user may not be allowed to make the folder in /opt itself: then in a copy of /opt that
    # consists of mounts
    if not os.path.isdir("/opt/ml"):
        copy = tempfile.mkdtemp(dir=root)
        mount("tmpfs", copy, 0, "tmpfs")
        for entry in os.scandir("/opt"):
            target = os.path.join(copy, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
                continue
            if entry.is_dir():
                os.mkdir(target)
            else:
                Path(target).touch()
            mount(entry.path, target, _BIND | _RECURSIVE)
        os.mkdir(os.path.join(copy, "ml"))
        mount(copy, "/opt", _MOVE)
        os.rmdir(copy)
    mount(root, "/opt/ml", _BIND)


def become_root() -> None:
    """Makes a user namespace in which this user may mount (user_namespaces(7)); root needs none."""
    if os.geteuid() == 0 and _may(_NEW_MOUNTS):
        return
    user, group = os.geteuid(), os.getegid()
    unshare(_NEW_USER)
    # without this, a user may not write a map of groups
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


@functools.cache
def can_leave_network() -> bool:
    """Returns whether this kernel and user can take the network from a job.

    That is tried out in a process.
    """
    tried = [sys.executable, "-m", "syrtos_jobs.runner.enter", "--as-root", "--no-network", "true"]
    return can_isolate() and subprocess.run(tried, capture_output=True, check=False).returncode == 0


@functools.cache
def can_isolate() -> bool:
    """Returns whether this kernel and user can isolate an instance, as tried out in a process."""
    if not os.path.isdir("/opt"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        spec = InstanceSpec(
            name="algo-1", root=folder, isolated=True, folder="/", hosts="/etc/hosts", mounts={}, fixed=("/opt/ml",), variables={}
        )  # fmt: skip
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(dataclasses.asdict(spec)))
        command = [sys.executable, "-m", "syrtos_jobs.runner.enter", str(path), "true"]
        as_root = [sys.executable, "-m", "syrtos_jobs.runner.enter", "--as-root", *command]
        tried = subprocess.run(as_root, capture_output=True, check=False)
        return tried.returncode == 0


def _may(flag: int) -> bool:
    # in a process of its own, which the namespace ends with
    child = os.fork()
    if child == 0:
        os._exit(ctypes.CDLL(None).unshare(flag) != 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def unshare(flags: int) -> None:
    """Calls unshare(2); `os.unshare` comes with Python 3.12."""
    _check_result(ctypes.CDLL(None, use_errno=True).unshare(flags), "unshare")


def mount(source: str, target: str, flags: int, kind: str | None = None) -> None:
    """Calls mount(2)."""
    words = [text.encode() if text is not None else None for text in (source, target, kind)]
    _check_result(
        ctypes.CDLL(None, use_errno=True).mount(*words, ctypes.c_ulong(flags), None),
        f"mount {target}",
    )


def _check_result(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
