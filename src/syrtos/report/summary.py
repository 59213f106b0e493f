"""Sums over the ledgers of a run."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from syrtos.report.ledger_lines import launcher_facts, sound_lines
from syrtos.run_dir import RunDir

# The kinds of time of a worker, in the order in which they are shown, and their names on the
# screen.
SHARES = {
    "start": "start-up",
    "import": "importing",
    "build": "building",
    "trace": "tracing",
    "input": "input",
    "compute": "compute",
    "update": "update",
    "exchange": "exchange",
    "wait": "waiting",
    "callbacks": "callbacks",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "profile": "profiling",
    "script": "script",
    "end": "ending",
    "rest": "rest",
}
EVALUATION = ("test", "predict")
# The kinds of time that a step takes whether or not it is the first one.
_STEP_KINDS = ("input", "compute", "update", "exchange", "wait", "callbacks", "rest")
TRAINING = ("train", "loop")


@dataclasses.dataclass
class Tally:
    """The sums of the ledger of one worker.

    Attributes:
        seconds: s from the start of the run to its end, by kind of `SHARES`.
        steps: the number of training steps.
        samples: samples of this worker.
        training: s of `fit` from begin to end, and of loops of the script's own from their first
            update to the last.
        step_seconds: wall time of each record of training steps, divided by their number.
        waited: s of training steps in which this worker waited for others.
        stepping: s of training steps.
        loop_steps: the number of steps that were updates of a loop of the script's own.
        before_steps: s before the first training step.
        step_parts: s of training steps after the first, by kind, without the making of graphs.
        timed_steps: the number of these steps.
        facts: how things are done in this run.
    """

    seconds: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(SHARES, 0.0)
    )
    steps: int = 0
    loop_steps: int = 0
    samples: float = 0.0
    training: float = 0.0
    stepping: float = 0.0
    waited: float = 0.0
    before_steps: float = 0.0
    step_seconds: list[float] = dataclasses.field(default_factory=list)
    step_parts: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(_STEP_KINDS, 0.0)
    )
    timed_steps: int = 0
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> float:
        """The seconds of all kinds together."""
        return sum(self.seconds.values())

    def add(self, record: dict[str, Any]) -> None:
        """Adds one line of the ledger."""
        phase = record["phase"]
        if phase == "facts":
            self.facts |= {key: value for key, value in record.items() if key != "phase"}
            return
        if phase in EVALUATION:
            self.seconds["evaluation"] += record["wall"]
        else:
            for kind in SHARES:
                self.seconds["script" if (kind, phase) == ("rest", "script") else kind] += (
                    record.get(kind, 0.0)
                )
        if phase in ("fit", *TRAINING) or record.get("in_fit"):
            self.training += record["wall"]
        if phase in TRAINING and record.get("steps"):
            self._add_step(record)
        elif not self.steps:
            self.before_steps += record["wall"]

    def _add_step(self, record: dict[str, Any]) -> None:
        self.steps += record["steps"]
        self.loop_steps += record["steps"] if record["phase"] == "loop" else 0
        self.samples += record.get("samples", 0.0)
        self.stepping += record["wall"]
        self.waited += record.get("wait", 0.0)
        self.step_seconds.append(record["wall"] / record["steps"])
        if len(self.step_seconds) > 1:
            self.timed_steps += record["steps"]
            for kind in _STEP_KINDS:
                self.step_parts[kind] += record.get(kind, 0.0)

    def complete_seconds(self, launcher: Mapping[str, Any]) -> dict[str, float]:
        """Returns the seconds, with the time before the worker started and after its last line."""
        if not {"began", "ended"} <= launcher.keys() or "began" not in self.facts:
            return self.seconds
        # Clocks of two hosts differ: all seconds together are as many as the launcher's own clock
        # says.
        missing = max(launcher["ended"] - launcher["began"] - self.total, 0.0)
        before = min(max(self.facts["began"] - launcher["began"], 0.0), missing)
        imported = imported_before(self.facts, launcher["began"], before)
        more = {"start": before - imported, "import": imported, "end": missing - before}
        return {kind: value + more.get(kind, 0.0) for kind, value in self.seconds.items()}


def imported_before(facts: Mapping[str, Any], began: float, before: float) -> float:
    """Returns the seconds of ``before`` that imports took in the process the worker is forked from.

    Args:
        facts: the worker's facts.
        began: the start of the generation, s since the epoch.
        before: s from the start of the generation to that of the worker.
    """
    first, last = facts.get("imported", (0.0, 0.0))
    return min(max(last - max(first, began), 0.0), before)


@dataclasses.dataclass(frozen=True)
class Restarts:
    """The cost of starting workers again.

    Attributes:
        number: the number of generations after the first.
        seconds: s from the last record of a generation until the next one trains, of all restarts:
            the time until the end was noticed, the start, and the drawing of data that had been
            trained on.
        steps: the number of steps that were computed again.
        step_seconds: s of these steps.
        goes_on: whether the last generation has trained.
        are_recorded: whether each launcher has written down when its generation began. On a full
            disk it can't, and what restarts cost is not known.
    """

    number: int = 0
    seconds: float = 0.0
    steps: int = 0
    step_seconds: float = 0.0
    goes_on: bool = True
    are_recorded: bool = True


@dataclasses.dataclass(frozen=True)
class Pace:
    """The duration of a run's steps after its first.

    Attributes:
        steps: the number of these steps.
        step: s of one of them, the median.
        alone: s that one worker would need for one at most: for all that the workers compute and
            read, one after the other.
        samples: samples of a step, of all workers together; 0 if they are not known.
    """

    steps: int = 0
    step: float = 0.0
    alone: float = 0.0
    samples: float = 0.0


@dataclasses.dataclass(frozen=True)
class Summary:
    """The facts of one screen about a run.

    Attributes:
        workers: the number of ledgers found.
        seconds: s of all generations, from their start to their end.
        steps: the number of training steps: updates of the weights; those that were computed again
            count once.
        loops: whether they were made by loops of the script's own.
        samples_per_second: training samples of all workers per second of training, if they are
            known, else 0.
        steps_per_second: training steps per second of training.
        step_ms: median wall time of one training step on rank 0, in milliseconds, without its first
            step.
        shares: part of all time of all ranks by kind; adds up to 1, or all 0 without ledgers.
        training_seconds: s of `fit` from begin to end, or of a loop of the script's own from its
            first update to its last: on rank 0, or, for workers that train at their own pace, on
            the one that took longest.
        pace: the duration of steps, and of those that one worker would make.
        skew: the slowest rank (the others waited for it most), and the share of time by which it
            waited less than the mean.
        facts: how things are done in this run, as rank 0 says.
        restarts: the cost of restarts.
        damaged: the files of which something can't be read, and is left out.
    """

    workers: int
    seconds: float
    steps: int
    loops: bool
    samples_per_second: float
    steps_per_second: float
    step_ms: float
    shares: dict[str, float]
    training_seconds: float
    pace: Pace
    skew: tuple[int, float] | None
    facts: dict[str, Any]
    restarts: Restarts
    damaged: tuple[Path, ...] = ()

    @property
    def goodput(self) -> float:
        """The part of the run's time that it would have taken if no worker had ended early."""
        lost = self.restarts.seconds + self.restarts.step_seconds
        return 1 - min(lost / self.seconds, 1.0) if self.seconds else 1.0


def summarize(*folders: Path) -> Summary:
    """Reads all ledgers of a run from the folders of its generations of workers, in order."""
    generations = [_Generation(folder) for folder in folders]
    last = next(
        (generation for generation in reversed(generations) if generation.ranks), generations[-1]
    )
    trained = next(
        (generation for generation in reversed(generations) if generation.first.steps), last
    )
    firsts = [generation.first for generation in generations]
    completed = [seconds for generation in generations for seconds in generation.completed]
    whole = sum(sum(seconds.values()) for seconds in completed)
    totals = {kind: sum(seconds[kind] for seconds in completed) for kind in SHARES}
    asynchronous = last.first.facts.get("training") == "asynchronous"
    training = (
        max((rank.training for rank in last.ranks), default=0.0)
        if asynchronous
        else sum(first.training for first in firsts)
    )
    computed = (
        sum(rank.steps for rank in last.ranks)
        if asynchronous
        else sum(first.steps for first in firsts)
    )
    samples = sum(rank.samples for generation in generations for rank in generation.ranks)
    return Summary(
        workers=len(last.ranks),
        seconds=sum(generation.seconds for generation in generations),
        steps=computed if asynchronous else trained.steps_of_run,
        loops=trained.first.loop_steps * 2 > trained.first.steps,
        samples_per_second=samples / training if training else 0.0,
        steps_per_second=computed / training if training else 0.0,
        step_ms=_median(seconds for first in firsts for seconds in first.step_seconds[1:]) * 1e3,
        shares={kind: value / whole if whole else 0.0 for kind, value in totals.items()},
        training_seconds=training,
        pace=_pace(trained.ranks),
        skew=_skew(trained.ranks),
        facts=last.first.facts
        | {"left_out": sum(int(first.facts.get("left_out", 0)) for first in firsts)},
        restarts=_restarts(generations),
        damaged=tuple(path for generation in generations for path in generation.damaged),
    )


class _Generation:
    """The ledgers of one generation of workers."""

    def __init__(self, folder: Path) -> None:
        self.damaged: list[Path] = []
        self.ranks = _tallies(folder, self.damaged)
        self.first = self.ranks[0] if self.ranks else Tally()
        self.launcher = launcher_facts(RunDir(folder).launcher, self.damaged)
        self.completed = [rank.complete_seconds(self.launcher) for rank in self.ranks]
        lasted = max(self.launcher.get("ended", 0.0) - self.launcher.get("began", 0.0), 0.0)
        self.seconds = max((sum(seconds.values()) for seconds in self.completed), default=lasted)

    @property
    def trained_before(self) -> int:
        """The number of steps that were in a snapshot, so that it did not compute them."""
        return int(self.first.facts.get("trained", 0))

    @property
    def steps_of_run(self) -> int:
        """The number of steps of the run that are made when it ends."""
        return self.trained_before + self.first.steps

    @property
    def before_steps(self) -> float:
        """The seconds until its first training step; all its seconds if it has made none."""
        if not self.first.steps:
            return self.seconds
        before_process = self.first.facts.get("began", 0.0) - self.launcher.get("began", math.inf)
        return max(before_process, 0.0) + self.first.before_steps

    @property
    def after_lines(self) -> float:
        """The seconds from its first worker's last line to its end; 0 if it has made no step."""
        ended = self.launcher.get("ended", 0.0) - self.first.facts.get("began", math.inf)
        # without a step all of its time is `before_steps`
        return max(ended - self.first.total, 0.0) if self.first.steps else 0.0


def _restarts(generations: list[_Generation]) -> Restarts:
    """Returns the cost of all restarts."""
    # A generation that made no step has only cost time: the next one that trains goes on where the
    # last one that trained had come to.
    recorded = all("began" in generation.launcher for generation in generations)
    found = Restarts(are_recorded=recorded)
    trained = None if not generations[0].first.steps else generations[0]
    for before, one in itertools.pairwise(generations):
        again = 0
        if one.first.steps:
            again = (
                0
                if trained is None
                else min(max(trained.steps_of_run - one.trained_before, 0), trained.first.steps)
            )
        step = trained.first.stepping / trained.first.steps if trained else 0.0
        found = Restarts(
            found.number + 1,
            found.seconds + before.after_lines + one.before_steps,
            found.steps + again,
            found.step_seconds + again * step,
            one.first.steps > 0,
            recorded,
        )
        trained = one if one.first.steps else trained
    return found


def _tallies(folder: Path, damaged: list[Path]) -> list[Tally]:
    """Returns the sums of all ledgers of a generation, by rank."""
    found = []
    for path in RunDir(folder).ledgers().values():
        found.append(Tally())
        for line in sound_lines(path, damaged):
            found[-1].add(line)
    return found


def _pace(ranks: list[Tally]) -> Pace:
    """Returns the duration of steps of workers that step together."""
    if not ranks or not all(rank.timed_steps for rank in ranks):
        return Pace()
    parts = [
        {kind: seconds / rank.timed_steps for kind, seconds in rank.step_parts.items()}
        for rank in ranks
    ]
    first, facts = parts[0], ranks[0].facts
    summed = {"compute"} | ({"input"} if facts.get("input") != "sliced" else set())
    # each worker does a part of the update: the parts add up to that of one process
    summed |= {"update"} if "state_whole" in facts else set()
    mean = sum(first.values())
    own = sum(
        first[kind]
        for kind in ("input", "compute", "update", "callbacks", "rest")
        if kind not in summed
    )
    return Pace(
        steps=ranks[0].timed_steps,
        step=(step := _median(ranks[0].step_seconds[1:])),
        alone=(
            step * (own + sum(part[kind] for part in parts for kind in summed)) / mean
            if mean
            else step
        ),
        samples=sum(rank.samples / rank.steps for rank in ranks),
    )


def _skew(ranks: list[Tally]) -> tuple[int, float] | None:
    """Returns the slowest rank, and the share of time by which it waited less than the mean.

    The result is None if that can't be told.
    """
    if len(ranks) < 2 or not all(rank.stepping for rank in ranks):
        return None
    waits = [rank.waited / rank.stepping for rank in ranks]
    # The rank that waits least is the slowest one: the others wait for it.
    slowest = min(range(len(waits)), key=waits.__getitem__)
    return slowest, sum(waits) / len(waits) - waits[slowest]


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
