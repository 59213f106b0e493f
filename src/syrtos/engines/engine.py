"""The interface of engines: systems that own machines, and place the processes of a run on them.

An engine is reached, or a run is submitted to it, or both:

- **reached**: this process is the launcher, and the engine starts an agent on each host
  (`Engine.reach`). The launcher talks to an agent by the standard input and output of a command, as
  it does with ssh.
- **submitted**: the engine runs `syrtos run` itself, on machines of its own (`Engine.files`,
  `Engine.submit`). This process only follows what becomes of it (`Submitted`), and may end before.

For the jobs of `syrtos serve --on` it reserves nodes (`Engine.reserve`).

To add an engine: a folder here whose ``ENGINE`` is an instance of a subclass, or an entry point of
the group ``syrtos.engines`` that names such an instance.
"""

from __future__ import annotations

import dataclasses
import shlex
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Literal

from syrtos.engines.reservation import NodeRequest, Requester, Reservation
from syrtos.errors import ConfigurationError
from syrtos.json_files import document
from syrtos.launch.generations import has_snapshot
from syrtos.launch.outcome import End, end_of
from syrtos.launch.spec import Host
from syrtos.launch.spelling import closest_name
from syrtos.run_dir import RunDir

Phase = Literal["waiting", "running", "finished", "failed", "stopped"]
# The exit code of a launcher that a scheduler has stopped, and whose run goes on when it is started
# again (EX_TEMPFAIL of sysexits.h).
STOPPED = 75
# The end of a run that a scheduler has stopped, as its launcher writes it down.
BY_SCHEDULER = [End.STOPPED.name, 128 + signal.SIGTERM]
_EVERY = 0.5  # seconds between two looks at a file that grows


def check_values(values: Mapping[str, str], known: Mapping[str, str], engine: str) -> None:
    """Refuses values of `--with` that an engine does not know.

    Raises:
        ConfigurationError: there is one.
    """
    if wrong := [name for name in values if name not in known]:
        close = closest_name(wrong[0], known)
        meant = f" Did you mean `{close}`?" if close else ""
        raise ConfigurationError(
            f"`--with {wrong[0]}=...` means nothing to {engine}.{meant} It knows:"
            f" {', '.join(known) or 'no values'}."
        )


@dataclasses.dataclass(frozen=True)
class EngineRequest:
    """A run as it was asked for.

    Attributes:
        workers: the number of workers; None: as many as the engine has places for.
        gpus: GPUs of each worker; 0: none is asked for.
        run_dir: the absolute path of the run directory.
        words: the words after `syrtos run` without those that choose the engine: options, the
            script, its arguments.
        values: what `--with NAME=VALUE` has given.
        python: the interpreter that runs syrtos here.
        folder: the folder in which the command was given.
        script: the last of the words: the script and its arguments.
    """

    workers: int | None
    gpus: int
    run_dir: Path
    words: tuple[str, ...]
    values: Mapping[str, str]
    python: str
    folder: Path
    script: tuple[str, ...] = ()

    def check(self, known: Mapping[str, str], engine: str) -> None:
        """Refuses values that the engine does not know.

        Raises:
            ConfigurationError: there is one.
        """
        check_values(self.values, known, engine)


@dataclasses.dataclass(frozen=True)
class ReachableHosts:
    """Hosts on which agents can be started.

    Attributes:
        hosts: the hosts, and the number of workers that each takes.
        command: a prefix of commands: `COMMAND HOST WORDS` runs WORDS on HOST, as with `--ssh`.
        discover: a command that prints the hosts of the moment, for runs that follow them
            (`--min-workers`); empty: they stay as they are.
        is_for_all: whether the command also starts the agent of a host that is this machine.
    """

    hosts: tuple[Host, ...]
    command: str
    discover: str = ""
    is_for_all: bool = False


@dataclasses.dataclass(frozen=True)
class RunState:
    """The state of a run that an engine has taken.

    Attributes:
        phase: waiting, running, or how it ended.
        why: a sentence that says why it waits or has failed, and what to do; empty if there is
            nothing to say.
        code: the exit code of the run; None while it is not known.
    """

    phase: Phase
    why: str = ""
    code: int | None = None

    @property
    def is_over(self) -> bool:
        """Returns whether the run has ended."""
        return self.phase in ("finished", "failed", "stopped")


class Submitted(ABC):
    """A run that an engine has taken.

    Attributes:
        name: the words for what runs it in sentences about it, e.g. ``job 12``.
    """

    name: str = "the run"

    @abstractmethod
    def state(self) -> RunState:
        """Asks the engine for the run's state."""

    @abstractmethod
    def output(self, follow: bool) -> Iterator[bytes]:
        """Yields what the run has printed, in pieces; with ``follow`` until it has ended."""

    @abstractmethod
    def stop(self, at_once: bool = False) -> None:
        """Asks the engine to end the run; workers save their state first, unless ``at_once``."""


class Engine(ABC):
    """A system that places the processes of runs.

    Attributes:
        name: the word after `--on`.
        settings: the names that `--with` may give, with their meanings.
    """

    name: ClassVar[str]
    settings: ClassVar[Mapping[str, str]] = {}

    def reach(self, wanted: EngineRequest) -> AbstractContextManager[ReachableHosts] | None:
        """Returns a context in which agents can be started on the hosts.

        Returns None where a run is to be submitted.
        """
        return None

    def check_jobs(self, values: Mapping[str, str]) -> None:
        """Checks what `syrtos serve --on` was given, before there is any job.

        Raises:
            ConfigurationError: the engine can't reserve nodes for jobs, or a value of `--with` is
                unknown or wrong.
        """
        raise ConfigurationError(
            f"`syrtos serve --on {self.name}`: {self.name} can't reserve nodes for jobs of a"
            " service."
        )

    def reserve(
        self, wanted: NodeRequest, requester: Requester
    ) -> AbstractContextManager[Reservation]:
        """Returns a context in which nodes are reserved for a job of `syrtos serve`.

        The context waits for the nodes at its beginning.

        Raises:
            LaunchError: the engine refuses, there are no such nodes, or ``requester`` is over.
        """
        raise NotImplementedError

    def files(self, wanted: EngineRequest) -> dict[str, str]:
        """Returns the text of each file that a submission consists of, by its name.

        The method is a pure function, whose result `--dry-run` prints.

        Raises:
            ConfigurationError: the run can't be submitted like this.
        """
        raise ConfigurationError(
            f"Runs can't be submitted to {self.name}: leave out --detach and --dry-run."
        )

    def submit(self, wanted: EngineRequest) -> dict[str, str]:
        """Submits the run, and returns facts by which `submitted_run` finds it again.

        Raises:
            LaunchError: the engine refuses it.
        """
        raise NotImplementedError

    def submitted_run(self, facts: Mapping[str, str]) -> Submitted:
        """Returns the run that `submit` has returned the facts of."""
        raise NotImplementedError


def growing(path: Path, submitted: Submitted, follow: bool) -> Iterator[bytes]:
    """Yields a file's contents in pieces; with ``follow`` what is added until the run has ended."""
    position, over = 0, not follow
    while True:
        for piece in read_from(path, position):
            position += len(piece)
            yield piece
        if over:
            return
        # what was written before its end is read once more
        over = submitted.state().is_over
        if not over:
            time.sleep(_EVERY)


def read_from(path: Path, position: int) -> Iterator[bytes]:
    """Yields the rest of a file from ``position`` on, in pieces; nothing while there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            while piece := file.read(1 << 16):
                yield piece
    except FileNotFoundError:
        # The run has not begun to write.
        return


def _recorded_end(run_dir: Path) -> tuple[End, int] | None:
    """Returns how the last generation has ended, by the ledger, where the request is damaged."""
    outcome = document(RunDir(run_dir).newest().launcher).get("outcome")
    known = outcome if isinstance(outcome, dict) else {}
    return end_of({"end": [known.get("end"), known.get("code")]})


def read_end(run_dir: Path) -> RunState | None:
    """Returns how the run in a folder ended, as its launcher has written; None if it has not."""
    request = RunDir(run_dir).request()
    ended = end_of(request) if request else _recorded_end(run_dir)
    if ended is None:
        return None
    end, code = ended
    phases: dict[End, Phase] = {End.FINISHED: "finished", End.STOPPED: "stopped"}
    phase = phases.get(end, "failed")
    goes_on = (
        f", and `syrtos resume {shlex.quote(str(run_dir))}` goes on from its last snapshot"
        * (bool(request) and has_snapshot(run_dir))
    )
    says = f"`syrtos report {shlex.quote(str(run_dir))}` says what happened{goes_on}."
    if [end.name, code] == BY_SCHEDULER and goes_on:
        code = STOPPED
    return RunState(phase, "" if phase == "finished" else says, code)
