"""How a run ended: a pure function of the facts that the launcher saw.

A rank has finished only if it said so. Exit codes alone prove nothing: a library may end a process with code 0 in the middle of training,
and the launcher of our MPI ends all others then, with code 0 too.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

# Signals that the launcher of our MPI sends to the other processes once one has ended.
_CLEANING = (signal.SIGKILL, signal.SIGTERM)


class End(enum.Enum):
    """The ways in which a run can end."""

    FINISHED = "all workers finished"
    FAILED = "a worker reported an error"
    CRASHED = "a signal ended a worker"
    LOST = "a worker ended without a report"
    HUNG = "a worker did not come to an exchange"
    STOPPED = "a signal to the launcher ended the run"
    NOT_STARTED = "no worker started"


@dataclasses.dataclass(kw_only=True)
class Facts:
    """Facts about a run that the launcher saw.

    Attributes:
        processes: how many must say that they have finished, by rank from 0 on; 0: none can.
        spared: ranks whose death the others survive.
        returncode: of all workers as one, or of MPI's launcher; negative for a signal.
        stopped_by: the signal that this process was sent and passed on.
        finished: ranks that said so.
        interrupted: ranks that said that SIGINT ended their script.
        failures: the workers' reports, in the order in which they came in.
        workers: host and process of every rank that started.
        gone: ranks of this machine in the order in which their processes ended, where MPI's launcher has started them.
        fatal: rank and exit code of the process whose end, or call of `os._exit`, was the first, if it was before any report of a failure.
        lost: ranks that died and that the others went on without, with their exit codes.
        hung: ranks that did not come to an exchange in which the others waited, and what each was, as the end of "it is ...".
        noise: what MPI's launcher printed.
    """

    processes: int = 0
    spared: frozenset[int] = frozenset()
    returncode: int = 0
    stopped_by: int | None = None
    finished: set[int] = dataclasses.field(default_factory=set)
    interrupted: list[int] = dataclasses.field(default_factory=list)
    failures: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    workers: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    gone: list[int] = dataclasses.field(default_factory=list)
    fatal: tuple[int, int] | None = None
    lost: dict[int, int] = dataclasses.field(default_factory=dict)
    hung: dict[int, str] = dataclasses.field(default_factory=dict)
    noise: list[str] = dataclasses.field(default_factory=list)

    @property
    def unfinished(self) -> list[int]:
        """Ranks that should have said that they have finished, and did not."""
        return [rank for rank in range(self.processes) if rank not in self.finished]


@dataclasses.dataclass
class Outcome:
    """How a run ended.

    Attributes:
        end: in which way.
        code: the exit code of the run: 0, the failing script's, or 128 + the signal that ended a worker or the run.
        rank: the worker that ended first, or that hung, if known.
        status: how its process ended, if known: an exit code, or the negative of a signal.
        unfinished: ranks that did not say that they have finished.
        failures: the workers' reports, in the order in which they came in.
        workers: host and process of every rank that started.
        noise: what the launcher of our MPI said, for failures that no worker reported.
        lost: workers that died and that the others went on without, with their exit codes.
        hung: workers that the others waited for in vain, and what each was, as the end of "it is ...".
    """

    end: End = End.FINISHED
    code: int = 0
    rank: int | None = None
    status: int | None = None
    unfinished: tuple[int, ...] = ()
    failures: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    workers: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    noise: list[str] = dataclasses.field(default_factory=list)
    lost: dict[int, int] = dataclasses.field(default_factory=dict)
    hung: dict[int, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        """One sentence about the end, where no worker could report it."""
        if self.end is End.STOPPED:
            return f"the run was stopped by {signal_name(self.code - 128)}."
        if self.end is End.HUNG:
            return self._hung()
        if self.end not in (End.CRASHED, End.LOST):
            return f"{self.end.value}."
        return f"{self._who()} {how(self.status)}{self._meaning()}."

    def _who(self) -> str:
        if self.rank is None:
            ranks = ", ".join(map(str, self.unfinished))
            return f"one of the ranks {ranks}" if ranks else "a process"
        worker = self.workers.get(self.rank, {})
        host = f" on {worker['host']}" if "host" in worker else ""
        return f"rank {self.rank}{host} ended first: its process{_number(worker)}"

    def _hung(self) -> str:
        workers = [self.workers.get(rank, {}) for rank in self.hung]
        names = [
            f"rank {r} on {w.get('host', 'an unknown host')}{_number(w)}"
            for r, w in zip(self.hung, workers, strict=True)
        ]
        states = list(self.hung.values())
        if len(names) == 1:
            return f"{names[0]} did not come to an exchange, and others waited for it: it is {states[0]}."
        each = "; ".join(f"{name}: it is {state}" for name, state in zip(names, states, strict=True))
        return f"others waited for these, which did not come to an exchange: {each}."

    def _meaning(self) -> str:
        if self.end is End.CRASHED:
            return ""
        if self.rank is not None and self.rank not in self.unfinished:
            return ", after its script had come to its end"
        return " before its script had come to its end: something in it ended the process (`os._exit`, or a library)"


def _number(worker: Mapping[str, Any]) -> str:
    return f" (number {worker['pid']})" if "pid" in worker else ""


def how(status: int | None) -> str:
    """How a process ended, as the end of a sentence about it."""
    if status is None:
        return "ended"
    return f"was ended by {signal_name(-status)}" if status < 0 else f"ended with exit code {status}"


def signal_name(number: int) -> str:
    """``SIGABRT (signal 6)``."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def judge(facts: Facts) -> Outcome:
    """How the run ended that ``facts`` describe."""
    outcome = _verdict(facts)
    return dataclasses.replace(
        outcome,
        unfinished=tuple(facts.unfinished),
        failures=facts.failures,
        workers=facts.workers,
        noise=facts.noise,
        lost=facts.lost,
        hung=facts.hung,
    )


def _verdict(facts: Facts) -> Outcome:
    if facts.stopped_by is not None:
        return Outcome(End.STOPPED, 128 + facts.stopped_by)
    if facts.spared and 0 in facts.finished:
        return Outcome()
    if facts.fatal is not None and facts.workers:
        return _ended(*facts.fatal)
    if facts.hung and (facts.unfinished or facts.returncode) and not facts.failures:
        return Outcome(End.HUNG, 1, min(facts.hung))
    if facts.failures:
        first = facts.failures[0]
        if facts.hung and first["rank"] not in facts.hung and "StalledError" in first.get("text", ""):
            return Outcome(End.HUNG, int(first.get("code", 1)) or 1, min(facts.hung))
        return Outcome(End.FAILED, int(first.get("code", 1)) or 1, first["rank"])
    if facts.interrupted:
        return _ended(facts.interrupted[0], -signal.SIGINT)
    if facts.returncode or facts.unfinished:
        return _without_a_word(facts)
    return Outcome()


def _without_a_word(facts: Facts) -> Outcome:
    """No worker reported anything, and not all have finished, or MPI's launcher failed."""
    if facts.processes and not facts.workers:
        return Outcome(End.NOT_STARTED, _exit_code(facts.returncode) or 1)
    statuses = dict(enumerate(_statuses(facts.noise)))
    if len(statuses) < len(facts.workers):  # a host has not sent its part of the list: the numbers are of other ranks
        statuses = {}
    rank = _first(facts, statuses) if facts.unfinished else _by_itself(statuses)
    status = statuses.get(rank) if rank is not None else None
    if status is None:
        rank, status = _by_banner(facts, rank)
    return _ended(rank, facts.returncode if status is None else status)


def _first(facts: Facts, statuses: Mapping[int, int]) -> int | None:
    """The worker that ended first: by a signal of its own, else the first to be gone where all are seen, else by its exit code."""
    unfinished = set(facts.unfinished) - set(facts.lost)
    if len(unfinished) == 1:
        return min(unfinished)
    own = {rank: status for rank, status in statuses.items() if rank in unfinished}
    crashed = next((rank for rank, status in own.items() if status < 0 and -status not in _CLEANING), None)
    if crashed is None and [status for status in own.values() if status] == [-signal.SIGTERM]:
        crashed = _by_itself(own)  # the others were ended after it, and may have been gone before it
    elsewhere = len({worker.get("machine") for worker in facts.workers.values()}) > 1
    gone = next((rank for rank in facts.gone if rank in unfinished and not elsewhere), None)
    return next((rank for rank in (crashed, gone) if rank is not None), _by_itself(own))


def _by_itself(statuses: Mapping[int, int]) -> int | None:
    """The first that ended with an exit code, or the only one that a signal ended."""
    exited = [rank for rank, status in statuses.items() if status > 0]
    ended = exited or [rank for rank, status in statuses.items() if status]
    return ended[0] if exited or len(ended) == 1 else None


def _ended(rank: int | None, status: int) -> Outcome:
    end = End.CRASHED if status < 0 else End.LOST
    return Outcome(end, _exit_code(status) or 1, rank, status)


def _exit_code(status: int) -> int:
    return 128 - status if status < 0 else status


def _statuses(noise: Sequence[str]) -> list[int]:
    """Exit codes by rank, from the wait statuses that MPI's launcher prints; negative for signals.

    The list reads ``Exit codes: [host] 9,768,0``, with a line for each further host. A worker that it has ended itself is listed with
    the signal, or with 0.
    """
    text = "\n".join(noise).partition("Exit codes: ")[2]
    groups = re.findall(r"^\[\S+\] (\d+(?:,\d+)*)", text, re.MULTILINE)
    numbers = [int(number) for group in groups for number in group.split(",")]
    return [_status(number) for number in numbers]


def _status(number: int) -> int:
    """Of a wait status (wait(2)), which has a bit for a core dump."""
    return -(number & 0x7F) if number & 0x7F else number >> 8


def _by_banner(facts: Facts, rank: int | None) -> tuple[int | None, int | None]:
    """The worker that ended first and how, as far as hydra's banner tells where no list of exit codes came: when other hosts end in disorder.

    It names a process of the host on which the first worker ended: that worker, if the host has no other. After a SIGKILL it writes `EXIT CODE: 9` (seen
    with MPICH 5.0.2 on two hosts), mostly and for other signals always with `(signal N)`; without, an exit with code 9 looks the same.
    """
    text = "\n".join(facts.noise)
    banner = re.search(r"PID (\d+) RUNNING AT \S+\n=\s+EXIT CODE: (\d+)", text)
    if rank is None and banner is not None:
        rank = _alone_on_its_host(facts, int(banner[1]))
    if found := re.search(r"\(signal (\d+)\)", text):
        return rank, -int(found[1])
    if banner is None:
        return rank, None
    code = int(banner[2])
    return rank, -code if code == signal.SIGKILL else code


def _alone_on_its_host(facts: Facts, pid: int) -> int | None:
    """The worker with this number of a process, if its host has no other worker."""
    machines = [worker.get("machine") for worker in facts.workers.values()]
    named = [r for r, w in facts.workers.items() if w.get("pid") == pid and machines.count(w.get("machine")) == 1]
    return named[0] if len(named) == 1 else None
