"""The exact commands of a run, made from a request by a pure function: `--dry-run` prints them."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Iterator, Mapping

from syrtos.errors import ConfigurationError, LaunchError
from syrtos.launch.spec import Spec
from syrtos.settings import OPTIONS_VARIABLE, hash_seed, is_harmless
from syrtos.topology import check_tf_config

# The argument of an agent whose launcher ends the run when the agent gets SIGTERM.
PASSES_SIGNALS_ON = "run"

# Variables that are forwarded to other hosts, beside those with one of the prefixes. Never all:
# some hold secrets.
_FORWARDED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "HOME",
    "LANG",
    "TMPDIR",
    "COLUMNS",
    "LINES",
)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Facts about the machine that launches.

    Attributes:
        python: the interpreter that workers and agents run, at this path on all hosts.
        cores: processors this process may use.
        here: names of hosts that are this machine.
    """

    python: str
    cores: int
    here: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes of one command on one host.

    Attributes:
        command: the whole command line of each.
        ranks: the ranks of the processes.
        host: the host on which an agent starts them; empty: this machine.
    """

    command: tuple[str, ...]
    ranks: range
    host: str = ""


@dataclasses.dataclass(frozen=True)
class LaunchPlan:
    """The processes of one world that a run executes; they find each other by PMI.

    Attributes:
        groups: the processes, in the order of their ranks.
        environment: variables set on top of this process's.
        spared: ranks whose death the others survive.
        agents: for each host the command that starts an agent there, which starts the processes;
            empty: this process starts them.
        forward: names of variables that processes of other hosts get from this one, beside
            `forwarded_variables`.
        reports: whether the processes are workers, which say when they have finished; else exit
            code 0 says so.
    """

    groups: tuple[Group, ...]
    environment: Mapping[str, str]
    spared: frozenset[int] = frozenset()
    agents: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    forward: tuple[str, ...] = ()
    reports: bool = True

    @property
    def processes(self) -> int:
        """The number of processes."""
        return sum(len(group.ranks) for group in self.groups)

    @property
    def hosts(self) -> list[str]:
        """The hosts of the processes, each once."""
        return list(dict.fromkeys(group.host for group in self.groups))

    @property
    def nodes(self) -> list[int]:
        """The number of each rank's host, in rank order."""
        return [self.hosts.index(group.host) for group in self.groups for _ in group.ranks]

    def __str__(self) -> str:
        agents = [
            f"# agent on {host}:\n{shlex.join(command)}" for host, command in self.agents.items()
        ]
        return "\n".join([*agents, *map(self._describe_group, self.groups)])

    def _describe_group(self, group: Group) -> str:
        count, where = len(group.ranks), f" on {group.host}" * bool(group.host)
        variables = [
            f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())
        ]
        line = " \\\n  ".join([*variables, shlex.join(group.command)])
        return f"# {count} process{'es' * (count > 1)}{where}, joined by PMI:\n{line}"


def make_plan(
    spec: Spec, machine: Machine, env: Mapping[str, str], without: frozenset[str] = frozenset()
) -> LaunchPlan:
    """Returns the commands that start ``spec``'s workers from ``machine``.

    Hosts in ``without`` are lost, and get no workers.

    Raises:
        ConfigurationError: more workers than cores on this machine.
        LaunchError: all hosts are lost.
    """
    if not spec.hosts and spec.workers > machine.cores and not spec.oversubscribe:
        raise ConfigurationError(
            f"{spec.workers} workers were asked for, and this machine offers {machine.cores}"
            f" core{'s' * (machine.cores != 1)}: they would take turns. Use `-n {machine.cores}`,"
            " more hosts (`--hosts a:2,b:2`), or `--oversubscribe` if that is what you want."
        )
    check_tf_config(env)
    environment = {OPTIONS_VARIABLE: spec.options.to_json(), **hash_seed(env)}
    if env.get("PYTHONINSPECT"):
        # a worker would read commands at its end, and so fail
        environment["PYTHONINSPECT"] = ""
    if not spec.hosts and "UCX_NET_DEVICES" not in env:
        # MPI's data ports: nothing listens beyond loopback where it need not
        environment["UCX_NET_DEVICES"] = "lo"
    worker = (
        machine.python,
        *spec.program.flags,
        "-m",
        "syrtos.worker",
        *spec.program.words,
    )
    spared = frozenset(range(1, spec.workers)) if spec.options.asynchronous else frozenset[int]()
    groups = tuple(Group(worker, ranks, host) for host, ranks in _place_ranks(spec, without))
    agents = {
        group.host: agent_command(spec, group.host, machine, env) for group in groups if group.host
    }
    return LaunchPlan(groups, environment, spared, agents, spec.forward)


def agent_command(
    spec: Spec, host: str, machine: Machine, env: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns the command that starts an agent on ``host``."""
    return command_on(host, "syrtos.launch.remote.agent", spec.ssh, machine, env, PASSES_SIGNALS_ON)


def command_on(
    host: str, module: str, ssh: str, machine: Machine, env: Mapping[str, str], *arguments: str
) -> tuple[str, ...]:
    """Returns the command that runs a module, with its ``arguments``, on ``host``.

    On another machine the command runs by ssh, which gives it to a shell.
    """
    # -P: the folder in which it begins is not among its places of modules.
    command = (machine.python, "-P", "-m", module, *arguments)
    if host in machine.here:
        return command
    path = ("env", f"PYTHONPATH={env['PYTHONPATH']}") if "PYTHONPATH" in env else ()
    return (*shlex.split(ssh), host, *map(shlex.quote, (*path, *command)))


def _place_ranks(spec: Spec, without: frozenset[str]) -> Iterator[tuple[str, range]]:
    """Yields each host with its ranks, as many as the host has slots.

    Ranks that find no slot go round the hosts again (servers, or workers of lost hosts).
    """
    hosts = [(host.name, host.slots) for host in spec.hosts if host.name not in without]
    if spec.hosts and not hosts:
        raise LaunchError(f"No host answers any more: {', '.join(sorted(without))}.")
    first = 0
    while first < spec.processes:
        for host, slots in hosts or [("", spec.processes)]:
            count = min(slots, spec.processes - first)
            if count:
                yield host, range(first, first + count)
            first += count


def forwarded_variables(env: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """Returns the variables of this process that processes of other hosts get.

    Those named in ``more`` are among them. The variables come beside the plan's variables, and
    beside those that the processes have there.
    """
    return {
        name: env[name]
        for name in sorted(env)
        if name in _FORWARDED or name in more or is_harmless(name)
    }
