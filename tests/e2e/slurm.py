"""A private Slurm cluster on this host, for tests that start steps with srun.

Each node is a slurmd of its own on the loopback address, so a step sees several
nodes although one machine runs them. Everything is written below a temporary
folder, and neither munge nor systemd nor cgroups are needed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

# Debian's packages with the daemons, the commands and the pmi2 plugin.
APT_PACKAGES = ("slurm-wlm",)

_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "squeue")
_START_SECONDS = 30.0
_STOP_SECONDS = 30.0

# auth/none and cred/none stand in for munge; linuxproc and task/none keep Slurm
# out of the machine's cgroups; config_overrides allows more CPUs than there are.
_CONFIG = """\
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault={mpi}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
FirstJobId={job}
KillWait=2
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=off
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8\n"


def missing() -> str | None:
    """Say why a cluster cannot run here, or None where it can."""
    if os.geteuid() != 0:
        return "slurmd must run as root"
    absent = [name for name in _PROGRAMS if _program(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (apt: {' '.join(APT_PACKAGES)})"
    return None


@dataclass(frozen=True)
class Slurm:
    """A running cluster and the commands that use it."""

    folder: Path
    nodes: int

    def srun(
        self, args: list[str], timeout: float = 300.0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``srun`` and wait for its step; ``env`` is added to this process's."""
        return self._run(["srun", *args], timeout, env)

    def sbatch(
        self, script: str, args: list[str], timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a batch script to its end; its output is the result's stdout."""
        output = self.folder / f"batch-{time.monotonic_ns()}.out"
        path = output.with_suffix(".sh")
        path.write_text(script)
        done = self._run(["sbatch", "--wait", f"--output={output}", *args, str(path)], timeout)
        if output.exists():
            done.stdout = output.read_text()
        return done

    def jobs(self) -> list[str]:
        """The numbers of the jobs that wait or run."""
        return self._run(["squeue", "-h", "-o", "%i"]).stdout.split()

    def fact(self, job: str, name: str) -> str:
        """What Slurm says of a job under this name; empty if nothing."""
        found = re.search(rf"\b{name}=(\S*)", self._run(["scontrol", "show", "job", job]).stdout)
        return found[1] if found else ""

    def signal(self, job: str, name: str) -> None:
        """Send a signal to a job's batch script."""
        self._run(["scancel", "--batch", f"--signal={name}", job])

    def requeue(self, job: str) -> None:
        """Puts a job back into the queue, as an administrator does."""
        self._run(["scontrol", "requeue", job])

    def begin_now(self, job: str) -> None:
        """Let a job that was requeued begin, for which Slurm waits two minutes."""
        self.wait(lambda: self.fact(job, "JobState") == "PENDING", 60)
        self._run(["scontrol", "update", f"jobid={job}", "StartTime=now"])

    def cancel(self) -> None:
        """End every job, and wait until none of their processes is left."""
        self._run(["scancel", "--user=root"])
        self.wait(lambda: not self._run(["squeue", "-h"]).stdout, _STOP_SECONDS)

    def idle(self) -> bool:
        """Whether every node has registered and runs no job."""
        states = self._run(["sinfo", "-hN", "-p", "all", "-o", "%t"]).stdout.split()
        return states == ["idle"] * self.nodes

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Poll until ``ready``; show the daemons' messages when it never is."""
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                said = [path.read_text()[-4000:] for path in self.folder.glob("*.err")]
                raise TimeoutError("\n".join([f"Slurm not ready in {seconds:g} s", *said]))
            time.sleep(0.1)

    def _run(
        self, command: list[str], timeout: float = 30.0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        full = {**os.environ, **(env or {}), "SLURM_CONF": str(self.folder / "slurm.conf")}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=full)


@contextmanager
def cluster(nodes: int = 3, mpi: str = "none") -> Iterator[Slurm]:
    """Run a Slurm of this many nodes whose MpiDefault is ``mpi``."""
    names = [f"n{index + 1}" for index in range(nodes)]
    with ExitStack() as stack:
        # Not pytest's folder: the daemons' Unix sockets need a short path.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        slurm = Slurm(folder, nodes)
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(_config(folder, names, mpi))
        stack.enter_context(_daemon(folder, "slurmctld", []))
        for name in names:
            stack.enter_context(_daemon(folder, "slurmd", ["-N", name]))
        slurm.wait(slurm.idle, _START_SECONDS)
        # Before the daemons stop: a job's processes would outlive its slurmd.
        stack.callback(slurm.cancel)
        yield slurm


def _config(folder: Path, names: list[str], mpi: str) -> str:
    host = socket.gethostname().split(".")[0]
    port, *ports = _free_ports(1 + len(names))
    pairs = zip(names, ports, strict=True)
    lines = [_NODE.format(name=name, host=host, port=own) for name, own in pairs]
    # MPICH names shared memory after job and step, and a killed step leaves it
    # behind: a job number that comes back would meet the old contents.
    job = 1 + time.time_ns() // 10_000_000 % 60_000_000
    settings = _CONFIG.format(folder=folder, host=host, port=port, mpi=mpi, job=job)
    return settings + "".join(lines)


def _free_ports(count: int) -> list[int]:
    # All stay open until the last is known, or the kernel could give one twice.
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


def _program(name: str) -> str | None:
    # Debian puts the daemons into sbin, which is not on everyone's PATH.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


@contextmanager
def _daemon(folder: Path, name: str, args: list[str]) -> Iterator[None]:
    command = [_program(name) or name, "-D", "-f", str(folder / "slurm.conf"), *args]
    messages = folder / f"{'-'.join([name, *args[1:]])}.err"
    with messages.open("w") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            yield
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
