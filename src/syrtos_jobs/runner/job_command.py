"""The command that trains a job, made from the job and its folders.

Instances are hosts of a world, or run unconnected copies of a command.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

from syrtos import settings
from syrtos.engines.reservation import Node
from syrtos.errors import ConfigurationError
from syrtos.launch.plan import Group, LaunchPlan
from syrtos.run_dir import RunDir
from syrtos.settings import OPTIONS_VARIABLE, Options
from syrtos_jobs.requests import secrecy
from syrtos_jobs.requests.request import Job
from syrtos_jobs.runner import contract, processes
from syrtos_jobs.runner.contract import ML, InstanceFacts
from syrtos_jobs.runner.enter import InstanceSpec

_SHARED = ("model", "output/data", "checkpoints")
_KEPT = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "USER", "TZ")
# What scripts on nodes are told, as on SageMaker: no engine says which interface its nodes have.
_INTERFACE_OF_NODES = "eth0"
_OURS = ("SYRTOS_HOME", "SYRTOS_S3_ENDPOINT")


@dataclasses.dataclass(frozen=True)
class Folders:
    """The folders of a job's instances.

    Attributes:
        job: the job's folder.
        isolated: whether instances have mounts of their own, as tried on this machine, or on the
            first of the nodes.
        nodes: the nodes on which the instances are, which see the folders at the same paths; empty:
            they are on this machine.
    """

    job: Path
    isolated: bool
    nodes: tuple[Node, ...] = ()

    def address(self, job: Job, host: int) -> str:
        """Returns the address at which the other instances reach one."""
        return self.nodes[host].address if self.nodes else local_address(job.name, host)

    def ml(self, host: int) -> Path:
        """Returns the folder that an instance sees as ``/opt/ml``."""
        return self.job / "instances" / f"algo-{host + 1}" / "ml"

    def code(self, job: Job, host: int) -> Path:
        """Returns the folder in which an instance has the job's source."""
        folder = job.program.folder if job.program else f"{ML}/code"
        return self.ml(host) / folder.removeprefix(f"{ML}/")

    def shared_folder(self, name: str) -> Path:
        """Returns the folder that a world's instances share: one of them writes, all may read."""
        return self.job / "shared" / name

    def seen(self, job: Job, host: int, path: str) -> Path:
        """Returns the folder that an instance sees at a path.

        A path outside of ``/opt/ml`` needs a mount of its own.
        """
        if not path.startswith(f"{ML}/"):
            return self.job / "instances" / job.hosts[host] / "outside" / path.lstrip("/")
        for name in () if job.distribution.kind == "copies" else _SHARED:
            if f"{path}/".startswith(f"{ML}/{name}/"):
                return self.shared_folder(path.removeprefix(f"{ML}/"))
        return self.ml(host) / path.removeprefix(f"{ML}/")

    def driven_run_dir(self, job: Job) -> Path:
        """Returns the directory of the run that a job's driver started on its first instance."""
        return self.outputs(job, "checkpoints")[0] / "syrtos"

    def failure(self, host: int) -> Path:
        """Returns the file to which a script writes why it has failed."""
        return self.ml(host) / "output" / "failure"

    def outputs(self, job: Job, name: str) -> list[Path]:
        """Returns the folders in which the instances leave a kind of output."""
        if job.distribution.kind == "copies":
            return [self.ml(host) / name for host in range(len(job.hosts))]
        return [self.shared_folder(name)]

    def run_dir(self, attempt: int) -> Path:
        """Returns the run directory of an attempt, with its logs and ledgers."""
        return self.job / f"attempt-{attempt}"

    def make(self, job: Job) -> None:
        """Makes the folders and files that a script expects."""
        for host in range(len(job.hosts)):
            ml = self.ml(host)
            for name in ("input/data", "input/config", "code", "output", *_SHARED):
                (ml / name).mkdir(parents=True, exist_ok=True)
            # without mounts, links make the instances share what one of them writes
            if job.distribution.kind != "copies" and not self.isolated:
                for name in _SHARED:
                    self.shared_folder(name).mkdir(parents=True, exist_ok=True)
                    if not (ml / name).is_symlink():
                        (ml / name).rmdir()
                        (ml / name).symlink_to(self.shared_folder(name))
        for name in _SHARED:
            self.shared_folder(name).mkdir(parents=True, exist_ok=True)

    def instance_facts(self, job: Job, host: int, gpus: int) -> InstanceFacts:
        """Returns the facts about an instance from its script's point of view."""
        root = ML if self.isolated else str(self.ml(host))
        names = (
            job.hosts
            if self.isolated
            else tuple(self.address(job, k) for k in range(len(job.hosts)))
        )
        if self.nodes:
            return InstanceFacts(root, names, self.nodes[host].cpus, gpus, _INTERFACE_OF_NODES)
        return InstanceFacts(root, names, cores(), gpus)


def local_address(job: str, host: int) -> str:
    """Returns an instance's address on this machine."""
    # All of 127/8 is this machine: each job has addresses of its own, so that two jobs may use the
    # same port.
    number = zlib.crc32(job.encode())
    return f"127.{64 + number % 64}.{number // 64 % 256}.{host + 1}"


def write_hosts_file(job: Job, folders: Folders) -> None:
    """Writes what is to be ``/etc/hosts`` of each instance."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{folders.address(job, host)} {name}" for host, name in enumerate(job.hosts)]
    # This machine's file may be all that resolves the names of nodes.
    rest = Path("/etc/hosts").read_text() if folders.nodes else ""
    (folders.job / "instances" / "hosts").write_text("\n".join(lines) + "\n" + rest)


def base_environment(env: Mapping[str, str], mark: str) -> dict[str, str]:
    """Returns the part of the service's environment that a job's processes get: no secrets."""
    kept = {
        name: value
        for name, value in env.items()
        if name in _KEPT or (settings.is_harmless(name) and name not in _OURS)
    }
    return {**kept, processes.MARK: mark}


def make_plan(
    job: Job,
    folders: Folders,
    run_dir: Path,
    python: Path,
    env: Mapping[str, str],
    credentials: Mapping[str, str],
    gpus: int = 0,
    reach: str = "",
) -> LaunchPlan:
    """Returns the commands that train; each instance gets a file that says how to enter it.

    Args:
        run_dir: the folder for logs and ledgers.
        python: the interpreter of the job's scripts.
        env: this process's environment.
        credentials: environment variables with which a script reaches the service.
        gpus: GPUs of each instance.
        reach: a prefix of commands: `REACH NODE WORDS` runs WORDS on NODE; empty: the instances are
            on this machine.
    """
    if not folders.isolated:
        _check_without_namespaces(job)
    servers = len(job.hosts) if _wants_servers(job, folders) else 0
    options = Options(batch=job.batch, run_dir=str(run_dir), servers=servers)
    here = Path(sys.executable)
    path = os.pathsep.join([str(python.parent), str(here.parent), env.get("PATH", os.defpath)])
    groups: list[Group] = []
    for host in [*range(len(job.hosts)), *range(servers)]:
        first = groups[-1].ranks.stop if groups else 0
        count = job.distribution.processes if len(groups) < len(job.hosts) else 1
        spec = _spec(job, folders, host, {"PATH": path, **credentials}, run_dir, gpus)
        node = folders.nodes[host].name if folders.nodes else ""
        groups.append(
            Group(_command(job, folders, host, python, spec), range(first, first + count), node)
        )
    environment = {OPTIONS_VARIABLE: options.to_json(), "PATH": path}
    if not folders.nodes:
        environment["UCX_NET_DEVICES"] = "lo"
    # mpi4py looks for MPI in the environment that it runs in, and the job's own has none
    if python != here:
        environment["MPI4PY_LIBMPI"] = str(Path(sys.prefix) / "lib" / "libmpi.so.12")
    spared = frozenset(range(1, job.slots)) if options.asynchronous else frozenset[int]()
    agents = _agents(job, folders, here, reach)
    return LaunchPlan(
        tuple(groups), environment, spared, agents, reports=job.distribution.kind != "copies"
    )


def _agents(job: Job, folders: Folders, python: Path, reach: str) -> dict[str, tuple[str, ...]]:
    """Returns the commands that start agents, by node.

    Without isolation no agent is needed on this machine.
    """
    agent = (str(python), "-P", "-m", "syrtos.launch.remote.agent")
    if folders.isolated:
        # All instances of a machine are in one user namespace, so that their processes may share
        # memory.
        network = ("--no-network",) if job.is_offline else ()
        agent = (str(python), "-P", "-m", "syrtos_jobs.runner.enter", "--as-root", *network, *agent)
    if folders.nodes:
        return {
            node.name: (*shlex.split(reach), node.name, *map(shlex.quote, agent))
            for node in folders.nodes
        }
    return {"": agent} if folders.isolated else {}


def _check_without_namespaces(job: Job) -> None:
    """Refuses what needs an instance's own mounts or network, where the kernel allows neither.

    Raises:
        ConfigurationError: the job asks for it.
    """
    why = "The kernel does not allow user namespaces:"
    if job.checkpoints and job.checkpoints[1].rstrip("/") != f"{ML}/checkpoints":
        raise ConfigurationError(
            f"{why} checkpoints can't be at {job.checkpoints[1]}. Leave CheckpointConfig.LocalPath"
            " out."
        )
    if job.tensorboard and not job.tensorboard[1].startswith(f"{ML}/"):
        raise ConfigurationError(
            f"{why} TensorBoard's files can't be at {job.tensorboard[1]}. Name a folder below {ML}"
            " as TensorBoardOutputConfig.LocalPath."
        )
    if job.is_offline:
        raise ConfigurationError(
            f"{why} the network can't be taken from a job. Leave EnableNetworkIsolation out."
        )
    if job.program and job.program.driven:
        raise ConfigurationError(
            f"{why} SageMaker's sm_train.sh, which starts the job's driver, finds no {ML}. Leave"
            " `distributed` out: the job trains on all instances as well."
        )


def _command(
    job: Job, folders: Folders, host: int, python: Path, spec: InstanceSpec
) -> tuple[str, ...]:
    """Writes an instance's file, and returns the command line of the instance's processes."""
    copies = job.distribution.kind == "copies"
    command = _copy(job, folders, host, python) if copies else _worker(job, folders, host, python)
    file = folders.job / "instances" / f"{job.hosts[host]}.json"
    # made for its owner alone before anything is in it: it holds the job's keys
    file.touch(mode=0o600)
    file.write_text(json.dumps(dataclasses.asdict(spec)))
    return (sys.executable, "-m", "syrtos_jobs.runner.enter", str(file), *command)


def _spec(
    job: Job, folders: Folders, host: int, variables: Mapping[str, str], run_dir: Path, gpus: int
) -> InstanceSpec:
    place = folders.instance_facts(job, host, gpus)
    copies = job.distribution.kind == "copies"
    mounts = {}
    if folders.isolated:
        if not copies:
            mounts = {f"{ML}/{name}": str(folders.shared_folder(name)) for name in _SHARED}
        kept = folders.outputs(job, "checkpoints")[host if copies else 0]
        mounts |= {job.checkpoints[1].rstrip("/"): str(kept)} if job.checkpoints else {}
        if job.tensorboard and not job.tensorboard[1].startswith(f"{ML}/"):
            mounts[job.tensorboard[1]] = str(folders.seen(job, host, job.tensorboard[1]))
    # files of a FastFile channel are links to the data itself
    fixed = [
        f"{ML}/input/data/{channel.name}" for channel in job.channels if channel.mode == "FastFile"
    ]
    code = place.instance_path(job.program.folder) if job.program else ""
    own = {"PYTHONPATH": code} if code else {}
    return InstanceSpec(
        name=job.hosts[host],
        root=str(folders.ml(host)),
        isolated=folders.isolated,
        folder=code or place.root,
        hosts=str(folders.job / "instances" / "hosts"),
        mounts=mounts,
        fixed=tuple(fixed) if folders.isolated else (),
        variables={
            **variables,
            **own,
            **contract.environment(job, host, place),
            **_hidden_arguments(job, place),
        },
        rank=host if copies else None,
        output=str(RunDir(run_dir).logs / f"{job.hosts[host]}.log") if copies else "",
    )


def _worker(job: Job, folders: Folders, host: int, python: Path) -> list[str]:
    assert job.program is not None
    place = folders.instance_facts(job, host, 0)
    script = f"{place.instance_path(job.program.folder)}/{job.program.entry}"
    shown = [] if _hides_arguments(job) else arguments(job, place)
    return [str(python), "-m", "syrtos.worker", script, *shown]


def _copy(job: Job, folders: Folders, host: int, python: Path) -> list[str]:
    program = job.program
    place = folders.instance_facts(job, host, 0)
    if program is None or program.driven:
        # where there are no mounts, the command's paths are those of this machine
        return [word.replace(ML, place.root) for word in job.command]
    if _hides_arguments(job):
        return [str(python), "-m", "syrtos_jobs.runner.script", program.entry]
    if program.is_python:
        return [str(python), program.entry, *arguments(job, place)]
    return [
        "/bin/sh",
        "-c",
        'chmod +x "$0" && exec "./$0" "$@"',
        program.entry,
        *arguments(job, place),
    ]


def arguments(job: Job, place: InstanceFacts) -> list[str]:
    """Returns the script's arguments, with paths below ``/opt/ml`` as they are on this machine."""
    assert job.program is not None
    return [place.instance_path(word) for word in job.program.arguments]


def _hides_arguments(job: Job) -> bool:
    """Returns whether a script gets its arguments by a variable.

    Anybody on a machine can read the command lines of its processes (ps(1)).
    """
    # the interpreter of a shell script has no other way to give it arguments
    is_python = job.program is not None and job.program.is_python and not job.program.driven
    return is_python and secrecy.has_secret_arguments(job.request)


def _hidden_arguments(job: Job, place: InstanceFacts) -> dict[str, str]:
    if not _hides_arguments(job):
        return {}
    return {settings.ARGUMENTS_VARIABLE: json.dumps(arguments(job, place))}


def cores() -> int:
    """Returns how many workers this machine has room for: the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def restarts(job: Job, folders: Folders) -> int:
    """Returns how often a job's dead workers are started again, as its `RetryStrategy` says."""
    # never unconnected copies, nor with parameter servers: they keep no snapshots
    asked = (job.request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0)
    return 0 if job.distribution.kind == "copies" or _wants_servers(job, folders) else asked


def _wants_servers(job: Job, folders: Folders) -> bool:
    """Returns whether a job gets parameter servers: its script uses ParameterServerStrategy."""
    # SageMaker starts them for all kinds of scripts, but the other kinds have no use for them and
    # train together
    if job.distribution.kind != "parameter_server" or job.program is None:
        return False
    script = folders.code(job, 0) / job.program.entry
    return "ParameterServerStrategy" in script.read_text(errors="replace")
