"""Two hosts on one machine, for tests that need a real network and a real ssh between workers.

Each host is a process with its own network, PID, IPC, UTS and mount namespaces: its own address, host name,
`/etc/hosts`, `/dev/shm`, process table and sshd on port 22. One veth pair, shaped with `tc` on both ends, is all that
joins them. Sharing nothing else matters: MPI's transports look for shared memory and for each other's PIDs, and on a
pair that differed in address only they would exchange data beside the link.

    with two_hosts("1gbit") as hosts:
        hosts.run(["mpiexec", "-launcher", "ssh", "-launcher-exec", str(hosts.ssh_wrapper),
                   "-hosts", ",".join(hosts.names), "-ppn", "1", "-n", "2", "python", "train.py"])

The hosts see the same files as the caller, but for `/dev/shm`, `/run` and `/sys`. Nothing here has a global name, so
any number of pairs can live side by side, and all of a host's processes end with its first one, which the kernel kills
if the test run itself is killed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("node-a", "node-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "eth0"
_NETWORK = "10.77.0.0/24"

# Burst: 1 ms of 1 Gbit/s. Smaller than a 64 KB segment and the shaper must cut each one up, much larger and the rate
# is not a rate. Latency: the longest a packet waits in the queue, about what a switch port buffers.
_QUEUE = "burst 128kb latency 20ms"

# The kernel takes up to a second to see that both ends are up; until then MPI would find no network but loopback.
_AWAIT_CARRIER = f'until [ "$(cat /sys/class/net/{INTERFACE}/carrier)" = 1 ]; do sleep 0.01; done'

_PID_FILE = "/run/sshd.pid"  # each host has a /run of its own

_TOOLS = ("ip", "tc", "ssh", "sshd", "ssh-keygen", "unshare", "nsenter", "setpriv", "mount", "ps")
_SEPARATE = ["--net", "--pid", "--ipc", "--uts", "--mount"]
_PATH = (
    os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
)  # an ordinary PATH lacks sshd, ip and tc

# The first process of a host. It must stay, and it must reap what others orphan, or ended workers would still be
# listed: a shell in `wait` does both. sshd wants /run/sshd, and only a new sysfs shows the new network.
_FIRST_PROCESS = """
set -e
echo "$1" > /proc/sys/kernel/hostname
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t sysfs sysfs /sys
mount --bind "$2" /etc/hosts
mkdir /run/sshd
ip link set lo up
echo ready
sleep infinity &
wait
"""

_SSHD_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
PidFile {pid_file}
"""

_SSH_CONFIG = """\
IdentityFile {folder}/client_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile none
StrictHostKeyChecking yes
BatchMode yes
"""


def missing() -> str | None:
    """Why two hosts can't be made here, or None if they can."""
    if os.geteuid() != 0:
        return "needs root (network namespaces, sshd on port 22)"
    absent = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if absent:
        return f"needs {', '.join(absent)} on PATH"
    return _refusal()


@contextmanager
def two_hosts(rate: str | None, delay: int = 0) -> Iterator["Hosts"]:
    """Two hosts joined by a link of this rate in each direction (as `tc` writes it: "1gbit"), or unshaped if None.

    With a `delay`, in milliseconds there and back, a process carries the packets (see `relay`), and the rate is in bits per second.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-hosts-")))
        wrapper = _prepare_ssh(folder)
        first, second = (stack.enter_context(_host(name, folder)) for name in NAMES)
        hosts = Hosts(NAMES, wrapper, (first, second))
        if delay:
            stack.enter_context(_relay(hosts, rate or "1e9", delay))
        else:
            _join(hosts, rate)
        for host in range(len(NAMES)):
            _check(hosts.run(["sh", "-c", _AWAIT_CARRIER], on=host, timeout=10))
        for host in range(len(NAMES)):
            _start_sshd(hosts, host, folder)
        yield hosts


@contextmanager
def two_hosts_or_skip(rate: str | None) -> Iterator["Hosts"]:
    """The same, for tests, which skip themselves with the reason where two hosts can't be made."""
    if reason := missing():
        pytest.skip(reason)
    with two_hosts(rate) as hosts:
        yield hosts


@dataclass(frozen=True)
class Hosts:
    """A running pair. `names` go into a host list; `ssh_wrapper` replaces `ssh` on either host.

    `first_pids` are the hosts' first processes as seen from outside: kill one and that host is gone, as in a power cut.
    """

    names: tuple[str, str]
    ssh_wrapper: Path
    first_pids: tuple[int, int]

    def flags(self, slots: int) -> list[str]:
        """The options of `syrtos run` that name both hosts, with so many workers each."""
        names = ",".join(f"{name}:{slots}" for name in self.names)
        return ["--hosts", names, "--ssh", f"{self.ssh_wrapper} -p 22"]

    def run(
        self,
        command: list[str],
        on: int = 0,
        timeout: float = 300.0,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end, or kill it at the timeout; `env` is added to this process's own."""
        with self.start(command, on, env) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def start(
        self, command: list[str], on: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on a host. The process returned waits for it: end the command itself with `signal`."""
        return subprocess.Popen(
            [*_enter(self.first_pids[on]), "env", f"--chdir={Path.cwd()}", *command],
            env=_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def signal(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Send a signal to the command that `start` started."""
        os.kill(_only_child(process), number)

    def kill(self, host: int, pattern: str) -> None:
        """Kill what runs on a host with this in its command line."""
        _check(self.run(["pkill", "-KILL", "-f", pattern], on=host))

    def processes(self, host: int) -> list[str]:
        """The command lines of what runs on a host, without what has ended and is about to be reaped."""
        shown = self.run(["ps", "-e", "-o", "stat=,args="], on=host).stdout.splitlines()
        states = [line.split(maxsplit=1) for line in shown]
        return [arguments for state, arguments in states if not state.startswith("Z")]

    def sent_bytes(self, host: int) -> int:
        """How many bytes a host has put on the link so far."""
        table = Path(f"/proc/{self.first_pids[host]}/net/dev").read_text()
        line = next(line for line in table.splitlines() if line.strip().startswith(f"{INTERFACE}:"))
        return int(line.split()[9])

    def cut_link(self) -> None:
        """From now on nothing passes between the hosts."""
        _check(self.run(["ip", "link", "set", INTERFACE, "down"], on=1))

    def mend_link(self) -> None:
        """Undoes `cut_link`; routes have gone with the link."""
        _check(
            self.run(["sh", "-c", f"ip link set {INTERFACE} up && {_route(ADDRESSES[1])}"], on=1)
        )

    def stop_sshd(self, host: int) -> None:
        """From now on the host refuses ssh connections; open sessions stay."""
        stop = f"kill $(cat {_PID_FILE}); while [ -e {_PID_FILE} ]; do sleep 0.01; done"
        _check(self.run(["sh", "-c", stop], on=host, timeout=10))


def _refusal() -> str | None:
    """What the system answers to a dry run of the parts that containers and kernels often refuse."""
    link = f"ip link add {INTERFACE} type veth peer name other && ip link set other up"
    steps = f"mount -t sysfs sysfs /sys && {link} && {_shaped_end(ADDRESSES[0], '1gbit')}"
    isolated = ["unshare", *_SEPARATE, "--fork", "--mount-proc", "sh", "-c", steps]
    done = subprocess.run(isolated, env=_environment(), capture_output=True, text=True, check=False)
    return f"this system refuses: {done.stderr.strip()}" if done.returncode else None


def _shaped_end(address: str, rate: str | None) -> str:
    """The shell command that sets up a host's end of the link; it shapes what the host sends."""
    steps = [
        f"ip address add {address}/24 dev {INTERFACE} noprefixroute",
        f"ip link set {INTERFACE} up",
        _route(address),
    ]
    if rate is not None:
        steps.append(f"tc qdisc add dev {INTERFACE} root tbf rate {rate} {_QUEUE}")
    return " && ".join(steps)


def _route(address: str) -> str:
    # Congestion control is a setting of the machine, and a rate that depends on it would tell nothing.
    return f"ip route add {_NETWORK} dev {INTERFACE} src {address} congctl cubic"


def _prepare_ssh(folder: Path) -> Path:
    """Keys, settings and host table for both hosts; returns the wrapper that calls ssh with them."""
    for name in ("host_key", "client_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
        )
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"{','.join(NAMES + ADDRESSES)} {host_key}")
    entries = [f"{address} {name}\n" for address, name in zip(ADDRESSES, NAMES, strict=True)]
    (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *entries]))
    (folder / "sshd_config").write_text(_SSHD_CONFIG.format(folder=folder, pid_file=_PID_FILE))
    (folder / "ssh_config").write_text(_SSH_CONFIG.format(folder=folder))
    return _executable(folder / "ssh", f'#!/bin/sh\nexec ssh -F {folder}/ssh_config "$@"\n')


def _executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@contextmanager
def _host(name: str, folder: Path) -> Iterator[int]:
    """Start a host; gives the PID (seen from outside) of its first process, whose end ends all others.

    The kernel ties it to the thread that runs this, so that thread has to outlive the host.
    """
    dies_with_us = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *_SEPARATE,
        "--fork",
        "--mount-proc",
        "--kill-child",
    ]
    command = [*dies_with_us, "sh", "-c", _FIRST_PROCESS, "sh", name, str(folder / "hosts")]
    with subprocess.Popen(
        command, env=_environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _await_ready(process, f"host {name}")
            yield _only_child(process)
        finally:
            process.kill()


def _await_ready(process: subprocess.Popen[str], name: str) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{name} did not start; its error is on stderr")


def _join(hosts: Hosts, rate: str | None) -> None:
    """Connect the hosts, and wait until both ends know it."""
    ends = [["name", INTERFACE, "netns", str(pid)] for pid in hosts.first_pids]
    subprocess.run(
        ["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]],
        env=_environment(),
        check=True,
    )
    for host, address in enumerate(ADDRESSES):
        _check(hosts.run(["sh", "-c", _shaped_end(address, rate)], on=host))


@contextmanager
def _relay(hosts: Hosts, rate: str, delay: int) -> Iterator[None]:
    """Connect the hosts by a process; long packets keep it from taking the processors' time."""
    script = Path(__file__).with_name("relay.py")
    command = [
        sys.executable,
        str(script),
        *map(str, hosts.first_pids),
        INTERFACE,
        rate,
        str(delay),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            _await_ready(process, "relay")
            for host, address in enumerate(ADDRESSES):
                _check(
                    hosts.run(
                        [
                            "sh",
                            "-c",
                            f"ip link set {INTERFACE} mtu 9000 && {_shaped_end(address, None)}",
                        ],
                        on=host,
                    )
                )
            yield
        finally:
            process.kill()


def _start_sshd(hosts: Hosts, host: int, folder: Path) -> None:
    """Start sshd, which goes to the background by itself, and wait until it listens."""
    sshd = f"{shutil.which('sshd', path=_PATH)} -f {folder}/sshd_config -E {folder}/sshd_{host}.log"
    listening = f"until [ -s {_PID_FILE} ]; do sleep 0.01; done"  # written once the port is open
    _check(hosts.run(["sh", "-c", f"{sshd} && {listening}"], on=host, timeout=10))


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise RuntimeError(f"{done.args} ended with {done.returncode}: {done.stderr}")


def _enter(first_pid: int) -> list[str]:
    return ["nsenter", "--target", str(first_pid), *_SEPARATE]


def _environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PATH": _PATH, **(more or {})}


def _only_child(process: subprocess.Popen[str]) -> int:
    """The PID of the one process that `unshare` or `nsenter` forks and waits for."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        if found := children.read_text().split():
            return int(found[0])
        time.sleep(0.01)
    raise ProcessLookupError(f"{process.args} has already ended with {process.returncode}")
