"""From a request to the exact command: a pure function, so that `--dry-run` prints what a run does.

syrtos starts the workers of this machine itself; MPI's launcher starts those of other hosts, and those that may die while others go on.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path

from syrtos.errors import ConfigurationError
from syrtos.launch.seeds import hash_seed
from syrtos.launch.spec import Spec
from syrtos.settings import OPTIONS_VARIABLE, SUPERVISED_VARIABLE, is_harmless
from syrtos.topology import check_tf_config

# Variables that are forwarded to other hosts, beside those with one of the prefixes. Never all: some hold secrets.
_FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "HOME", "LANG", "TMPDIR", "COLUMNS", "LINES")


@dataclasses.dataclass(frozen=True)
class Machine:
    """Facts about the machine that launches.

    Attributes:
        python: the interpreter that workers run.
        mpiexec: the launcher that came with our MPI.
        cores: processors this process may use.
    """

    python: str
    mpiexec: str
    cores: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is executed.

    Attributes:
        command: the whole command line, of a worker or of a launcher that starts workers.
        environment: variables set on top of this process's.
        processes: how many must say that they have finished; 0 if none can.
        spared: ranks whose death the others survive.
        copies: how many processes of the command are started, as the ranks of one world; 0: the command is a launcher.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    processes: int = 0
    spared: frozenset[int] = frozenset()
    copies: int = 0

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        line = " \\\n  ".join([*variables, shlex.join(self.command)])
        return f"# {self.copies} process{'es' * (self.copies > 1)}, joined by PMI:\n{line}" if self.copies else line


def make_plan(spec: Spec, machine: Machine, env: Mapping[str, str]) -> Plan:
    """The command that starts ``spec``'s workers from ``machine``.

    Raises:
        ConfigurationError: more workers than cores on this machine.
    """
    if not spec.hosts and spec.workers > machine.cores and not spec.oversubscribe:
        raise ConfigurationError(
            f"{spec.workers} workers were asked for, and this machine offers {machine.cores} "
            f"core{'s' * (machine.cores != 1)}: they would take turns. Use `-n {machine.cores}`, more hosts (`--hosts a:2,b:2`), "
            "or `--oversubscribe` if that is what you want."
        )
    check_tf_config(env)
    environment = {OPTIONS_VARIABLE: spec.options.to_json(), **hash_seed(env)}
    if not spec.hosts and "UCX_NET_DEVICES" not in env:
        environment["UCX_NET_DEVICES"] = "lo"  # MPI's data ports: nothing listens beyond loopback where it need not
    program, *extra = shlex.split(spec.ssh)
    if spec.hosts and extra:
        environment["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(extra)
    worker = [machine.python, *spec.program.flags, "-m", "syrtos.launch.worker", *spec.program.words]
    if not spec.hosts and not spec.options.asynchronous:
        return Plan(tuple(worker), environment, spec.processes, copies=spec.processes)
    forwarded = {**env, **environment, SUPERVISED_VARIABLE: "1"}
    where = _remote(spec, program, forwarded) if spec.hosts else ["-launcher", "fork"]
    alive = ["-disable-auto-cleanup"] if spec.options.asynchronous else []
    command = (machine.mpiexec, "-print-all-exitcodes", *alive, *where, "-n", str(spec.processes), *worker)
    spared = frozenset(range(1, spec.workers)) if spec.options.asynchronous else frozenset[int]()
    return Plan(command, environment, spec.processes, spared)


def _remote(spec: Spec, program: str, env: Mapping[str, str]) -> list[str]:
    # each by name and value: hydra's -genvlist drops names with an underscore (seen with MPICH 5.0.2)
    names = [name for name in sorted(env) if name in _FORWARDED or is_harmless(name)]
    variables = [word for name in names for word in ("-genv", name, env[name])]
    hosts = ",".join(f"{host.name}:{host.slots}" for host in spec.hosts)
    return ["-launcher", "ssh", "-launcher-exec", program, "-hosts", hosts, "-genvnone", *variables]


def find_mpiexec(python: Path) -> Path:
    """The `mpiexec` beside the interpreter: it must belong to the MPI that workers load.

    Raises:
        ConfigurationError: there is none.
    """
    beside = python.parent / "mpiexec"
    if not beside.exists():
        raise ConfigurationError(
            f"There is no mpiexec beside {python}. syrtos uses the one of the `mpich` package: `pip install mpich mpi4py` "
            "into the environment that runs the script."
        )
    return beside
