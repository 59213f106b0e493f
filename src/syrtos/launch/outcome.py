"""The verdict on a run's end: a pure function of the facts that the launcher saw.

A rank has finished only if it said so. Exit codes alone prove nothing: a library may end a process
with code 0 in the middle of training.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import re
import signal
from collections.abc import Mapping
from typing import Any

from syrtos.launch.process_engine import ProcessEnd
from syrtos.launch.processes.signalling import stop_signal

# Ranks, process numbers and addresses in the text of an error.
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


class End(enum.Enum):
    """The ways in which a run can end."""

    FINISHED = "all workers finished"
    FAILED = "a worker reported an error"
    CRASHED = "a signal ended a worker"
    LOST = "a worker ended without a report"
    HUNG = "a worker did not come to an exchange"
    STOPPED = "a signal to the launcher ended the run"
    NOT_STARTED = "no worker started"
    REPLACED = "another number of workers was asked for, or hosts have come"


@dataclasses.dataclass(kw_only=True)
class Facts:
    """Facts about a run that the launcher saw.

    Attributes:
        processes: the number of processes, by rank from 0 on, that must say that they have
            finished.
        spared: ranks whose death the others survive.
        stopped_by: the signal that this process was sent and passed on (those of schedulers as
            SIGTERM).
        finished: ranks that said so.
        interrupted: ranks that said that SIGINT ended their script.
        interrupted_by: the rank that got that signal; None: none has said so.
        failures: the workers' reports, in the order in which they came in.
        workers: host and process of every rank that started.
        fatal: the process whose end, or call of `os._exit`, was the first, if it was before any
            report of a failure.
        lost: ranks that died and that the others went on without, with their ends.
        hung: ranks that did not come to an exchange in which the others waited, and what each was,
            as the end of "it is ...".
        replaced: the reason why this process ended the workers, so that others take their place;
            empty if it didn't.
    """

    processes: int
    spared: frozenset[int] = frozenset()
    stopped_by: int | None = None
    finished: set[int] = dataclasses.field(default_factory=set)
    interrupted: list[int] = dataclasses.field(default_factory=list)
    interrupted_by: int | None = None
    failures: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    workers: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    fatal: ProcessEnd | None = None
    lost: dict[int, ProcessEnd] = dataclasses.field(default_factory=dict)
    hung: dict[int, str] = dataclasses.field(default_factory=dict)
    replaced: str = ""

    @property
    def unfinished(self) -> list[int]:
        """The ranks that should have said that they have finished, and did not."""
        return [rank for rank in range(self.processes) if rank not in self.finished]


@dataclasses.dataclass
class Outcome:
    """The end of a run, and what is known of its cause.

    Attributes:
        end: the kind of end.
        code: the exit code of the run: 0, the failing script's, or 128 + the signal that ended a
            worker or the run.
        rank: the worker that ended first, or that hung, if known.
        status: how the process of ``rank`` ended, if known: an exit code, or the negative of a
            signal.
        why: what took that process away where its status is not known, as the end of a sentence
            about it.
        unfinished: ranks that did not say that they have finished.
        failures: the workers' reports, in the order in which they came in.
        workers: host and process of every rank that started.
        lost: workers that died and that the others went on without, with their ends.
        hung: workers that the others waited for in vain, and what each was, as the end of "it is
            ...".
        otherwise: the way in which the script's environment differed from the one in which its
            frameworks were imported for all workers, which ended them; else empty.
        stopped_by: the signal to the launcher that ended the run; None: none did.
        said: what the first process has printed before its end, where none has started.
        kills: a sentence about processes of this machine that Linux has killed for lack of memory
            meanwhile; empty if it has killed none.
    """

    end: End = End.FINISHED
    code: int = 0
    rank: int | None = None
    status: int | None = None
    why: str = ""
    unfinished: tuple[int, ...] = ()
    failures: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    workers: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    lost: dict[int, ProcessEnd] = dataclasses.field(default_factory=dict)
    hung: dict[int, str] = dataclasses.field(default_factory=dict)
    otherwise: str = ""
    stopped_by: int | None = None
    said: str = ""
    kills: str = ""

    def has_reported(self, error: str) -> bool:
        """Returns whether a worker has failed by an error of this name."""
        return any(error in failure.get("text", "") for failure in self.failures)

    def error(self) -> str:
        """Returns the line that tells the error which a worker has reported first.

        The text is empty if the run ended otherwise.
        """
        is_told = self.failures and self.end is End.FAILED
        return error_line(self.failures[0]["text"]) if is_told else ""

    def sentence(self) -> str:
        """Returns a sentence about the end, with the error if a worker has reported one."""
        who = "all workers failed alike" if self.failed_alike else f"rank {self.rank} failed"
        return f"{who}: {self.error()}." if self.error() else str(self)

    @property
    def failed_alike(self) -> bool:
        """Whether each of several workers has reported the same error, but for numbers in it."""
        ranks = {failure["rank"] for failure in self.failures}
        kinds = {_NUMBERS.sub("", failure["text"]) for failure in self.failures}
        return len(ranks) > 1 == len(kinds) and ranks >= {*self.unfinished} == {*self.workers}

    def stop(self) -> str:
        """Returns which signal has stopped the run, as the end of a sentence about it."""
        return f"stopped by {signal_name(self.stopped_by or self.code - 128)}"

    def facts(self) -> dict[str, object]:
        """Returns the facts about the end that are kept in the record of a run."""
        return {"end": self.end.name, "code": self.code, "rank": self.rank, "text": self.sentence()}

    def __str__(self) -> str:
        """Returns a sentence about the end, without the reports of workers."""
        if self.end is End.STOPPED:
            return f"the run was {self.stop()}."
        if self.end is End.HUNG:
            return self._describe_hung()
        if self.end is End.REPLACED:
            return self.why
        if self.end not in (End.CRASHED, End.LOST):
            return f"{self.end.value}."
        return f"{self._name_culprit()} {self.why or describe_exit(self.status)}{self._meaning()}."

    def _name_culprit(self) -> str:
        if self.rank is None:
            ranks = ", ".join(map(str, self.unfinished))
            return f"one of the ranks {ranks}" if ranks else "a process"
        worker = self.workers.get(self.rank, {})
        host = f" on {worker['host']}" if "host" in worker else ""
        return f"rank {self.rank}{host} ended first: its process{_number(worker)}"

    def _describe_hung(self) -> str:
        workers = [self.workers.get(rank, {}) for rank in self.hung]
        names = [
            f"rank {r} on {w.get('host', 'an unknown host')}{_number(w)}"
            for r, w in zip(self.hung, workers, strict=True)
        ]
        states = list(self.hung.values())
        if len(names) == 1:
            return (
                f"{names[0]} did not come to an exchange, and others waited for it: it is"
                f" {states[0]}."
            )
        each = "; ".join(
            f"{name}: it is {state}" for name, state in zip(names, states, strict=True)
        )
        return f"others waited for these, which did not come to an exchange: {each}."

    def _meaning(self) -> str:
        if self.end is End.CRASHED or self.why:
            return ""
        if self.rank is not None and self.rank not in self.unfinished:
            return ", after its script had come to its end"
        return (
            " before its script had come to its end: something in it ended the process (`os._exit`,"
            " or a library)"
        )


def _number(worker: Mapping[str, Any]) -> str:
    return f" (number {worker['pid']})" if "pid" in worker else ""


def describe_exit(status: int | None) -> str:
    """Describes how a process ended, as the end of a sentence about it."""
    if status is None:
        return "ended"
    return (
        f"was ended by {signal_name(-status)}" if status < 0 else f"ended with exit code {status}"
    )


def signal_name(number: int) -> str:
    """Returns name and number of a signal: ``SIGABRT (signal 6)``."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def end_of(found: Mapping[str, Any]) -> tuple[End, int] | None:
    """Returns how a run has ended, and its exit code; None if its request does not say."""
    try:
        name, code = found["end"]
        return End[name], int(code)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def judge(facts: Facts) -> Outcome:
    """Returns the outcome of the run that ``facts`` describe."""
    outcome = _verdict(facts)
    return dataclasses.replace(
        outcome,
        unfinished=tuple(facts.unfinished),
        failures=facts.failures,
        workers=facts.workers,
        lost=facts.lost,
        hung=facts.hung,
    )


def _exit_code_of(failure: Mapping[str, Any]) -> int:
    """Returns the exit code of a worker that failed, as a kernel passes it on, but never 0."""
    return int(failure.get("code", 1)) & 0xFF or 1


def _verdict(facts: Facts) -> Outcome:
    if facts.stopped_by is not None:
        code = 128 + stop_signal(facts.stopped_by)
        return Outcome(End.STOPPED, code, stopped_by=facts.stopped_by)
    if facts.replaced:
        return Outcome(End.REPLACED, 1, why=facts.replaced) if facts.unfinished else Outcome()
    # The others may die in an asynchronous run: it has gone well once rank 0 has finished.
    if facts.spared and 0 in facts.finished:
        return Outcome()
    if facts.fatal is not None:
        return _outcome_of(facts.fatal, None if facts.workers else End.NOT_STARTED)
    # A worker that the others went on without has not failed the run.
    failures = [failure for failure in facts.failures if failure["rank"] not in facts.lost]
    if facts.hung and facts.unfinished and not failures:
        return Outcome(End.HUNG, 1, min(facts.hung))
    if failures:
        first = failures[0]
        # The first to report is one that waited, not the one that hung.
        if (
            facts.hung
            and first["rank"] not in facts.hung
            and "StalledError" in first.get("text", "")
        ):
            return Outcome(End.HUNG, _exit_code_of(first), min(facts.hung))
        return Outcome(End.FAILED, _exit_code_of(first), first["rank"])
    if facts.interrupted:
        by = facts.interrupted[0] if facts.interrupted_by is None else facts.interrupted_by
        return _outcome_of(ProcessEnd(by, -signal.SIGINT))
    if facts.unfinished:
        return Outcome(End.LOST, 1, facts.unfinished[0] if len(facts.unfinished) == 1 else None)
    return Outcome()


def _outcome_of(first: ProcessEnd, end: End | None = None) -> Outcome:
    end = end or (End.CRASHED if first.code is not None and first.code < 0 else End.LOST)
    return Outcome(end, _exit_code(first.code) or 1, first.rank, first.code, first.why)


def _exit_code(status: int | None) -> int:
    return 128 - status if status is not None and status < 0 else (status or 0) & 0xFF


def error_line(text: str) -> str:
    """Returns the line of a traceback that tells the error: its class and the message's first line.

    Of an error in a graph it is TensorFlow's message, of a group of errors that of the group.
    """
    lines = text.strip("\n").splitlines()
    if lines and lines[0].lstrip().startswith("+ Exception Group Traceback"):
        of_group = itertools.takewhile(lambda line: not line.startswith("  +-"), lines[1:])
        lines = [line.removeprefix("  | ") for line in of_group]
    # In these lines TensorFlow names the node of a graph, after the error itself.
    told = [line for line in lines if line and not line.lstrip().startswith("[[{{node")]
    frames = [place for place, line in enumerate(told) if line.startswith('  File "')]
    after = told[frames[-1] + 1 :] if frames else []
    first = next((line for line in after if not line.startswith(" ")), "")
    last = told[-1] if told else ""
    return (last if not first or first.endswith(":") else first).rstrip(".")
