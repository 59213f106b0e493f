"""A request: the program, the number of workers, the hosts."""

from __future__ import annotations

import dataclasses
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from syrtos.errors import ConfigurationError
from syrtos.launch.program import Program
from syrtos.run_dir import RunDir
from syrtos.settings import Options

# Where runs that were given no run directory have theirs, and how these are named.
_RUNS, _RUN_NAME = Path("runs"), re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine and how many workers it takes."""

    name: str
    slots: int


@dataclasses.dataclass(frozen=True)
class Elastic:
    """A run with as many workers as its hosts have slots, which may come and go.

    Attributes:
        least: the least number of workers with which it trains; with fewer it waits for hosts.
        most: the largest number of workers; 0: as many as there are slots.
        discover: a command that prints the hosts of the moment; empty: they are in ``hostfile``, or
            only come back after they were lost.
        hostfile: a file of hosts that is read again and again.
    """

    least: int
    most: int = 0
    discover: str = ""
    hostfile: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """A request to run a script on many workers.

    Attributes:
        program: the program that each worker runs.
        workers: the number of workers, over all hosts.
        hosts: the hosts of the workers; empty for this machine.
        options: the options that travel to the workers.
        oversubscribe: whether more workers than cores are allowed.
        grace: seconds between a signal to the scripts, or the early end of a worker with exit code
            0, and their killing.
        ssh: command used to reach hosts, with options of its own.
        forward: names of variables that workers of other hosts get from this process, beside those
            that all get.
        elastic: how the number of workers follows the hosts; None: it is fixed.
        placed: whether an engine has chosen the hosts: they may be others when the run goes on.
    """

    program: Program
    workers: int
    hosts: tuple[Host, ...] = ()
    options: Options
    oversubscribe: bool = False
    grace: float = 10.0
    ssh: str = "ssh"
    forward: tuple[str, ...] = ()
    elastic: Elastic | None = None
    placed: bool = False

    @property
    def processes(self) -> int:
        """The number of workers and parameter servers; servers come after the workers."""
        return self.workers + self.options.servers

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigurationError(f"`-n` must be 1 or more workers. Received: {self.workers}.")
        self.program.check()
        if self.grace < 0:
            raise ConfigurationError(
                f"`--grace` must be 0 or more seconds. Received: {self.grace}."
            )
        slots = sum(host.slots for host in self.hosts)
        if self.hosts and self.workers > slots:
            raise ConfigurationError(
                f"{self.workers} workers were asked for, and the hosts have {slots}"
                f" slot{'s' * (slots != 1)}. Give hosts more (`a:4,b:4`), or `-n {slots}`."
            )


def new_run_dir() -> Path:
    """Returns a folder for a run that was given none: under ``runs``, named by the time."""
    return _RUNS / (time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2))


def newest_run_dir() -> Path | None:
    """Returns the folder in ``runs`` of the run that began or ended last; None if there is none."""
    found = (
        path
        for path in _RUNS.glob("*")
        if _RUN_NAME.fullmatch(path.name) or RunDir(path).request_file.exists()
    )

    def changed(path: Path) -> float:
        record = RunDir(path).request_file
        return (record if record.exists() else path).stat().st_mtime

    return max(filter(Path.is_dir, found), key=changed, default=None)


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Returns hosts from a text such as ``a:2,b:2``; without a number a host takes one worker.

    Raises:
        ConfigurationError: a name is empty or repeated, or slots are no positive number.
    """
    return _unique([_host(item.strip(), r"(\S+?)(?::(\d+))?") for item in text.split(",")])


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Returns hosts from a file, one to a line, as ``name``, ``name:2`` or ``name slots=2``.

    A ``#`` begins a comment.

    Raises:
        ConfigurationError: the file can't be read, or a line not understood.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The host file {path} can't be read: {error}.") from error
    return parse_lines(lines, f"The host file {path}")


def parse_lines(lines: Sequence[str], source: str) -> tuple[Host, ...]:
    """Returns hosts from lines of a host file, or of a command that prints such lines.

    ``source`` is the name of the file or command in errors.

    Raises:
        ConfigurationError: there are none, or a line is not understood.
    """
    bare = [line.split("#")[0].strip() for line in lines]
    hosts = [_host(line, r"(\S+?)(?::(\d+)|\s+slots\s*=\s*(\d+))?") for line in bare if line]
    if not hosts:
        raise ConfigurationError(f"{source} names no hosts. Write one to a line: `name slots=2`.")
    return _unique(hosts)


def _host(text: str, pattern: str) -> Host:
    found = re.fullmatch(pattern, text, re.ASCII)
    name, *slots = found.groups() if found else ("",)
    count = next((int(n) for n in slots if n), 1)
    if not re.fullmatch(r"[\w@][\w.@-]*", name, re.ASCII) or count < 1:
        raise ConfigurationError(
            "A host is written `name` or `name:slots`, in a host file also `name slots=2`."
            f" Received: {text!r}."
        )
    return Host(name, count)


def _unique(hosts: Sequence[Host]) -> tuple[Host, ...]:
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"A host is named twice: {', '.join(names)}. Give each once, with all its slots."
        )
    return tuple(hosts)
