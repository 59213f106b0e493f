"""Adds up the ledgers of a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from syrtos.observe.ledger import launcher_path

# The kinds of time of a worker, in the order in which they are shown, and their names on the screen.
SHARES = {
    "start": "start-up",
    "build": "building",
    "trace": "tracing",
    "input": "input",
    "compute": "compute",
    "exchange": "exchange",
    "wait": "waiting",
    "callbacks": "callbacks",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "rest": "rest",
}
_EVALUATION = ("test", "predict")
_TRAINING = ("train", "loop")


@dataclasses.dataclass
class Tally:
    """The sums of the ledger of one worker.

    Attributes:
        seconds: from the start of the run to its end, by kind of `SHARES`.
        steps: training steps.
        samples: of this worker's share.
        training: seconds of `fit` from begin to end, and of loops of the script's own from their first update to the last.
        step_seconds: wall time of each record of training steps, divided by their number.
        waited: seconds of training steps in which this worker waited for others.
        stepping: seconds of training steps.
        loop_steps: how many of the steps were updates of a loop of the script's own.
        facts: how things are done in this run.
    """

    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(SHARES, 0.0))
    steps: int = 0
    loop_steps: int = 0
    samples: float = 0.0
    training: float = 0.0
    stepping: float = 0.0
    waited: float = 0.0
    step_seconds: list[float] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> float:
        """All seconds."""
        return sum(self.seconds.values())

    def add(self, record: dict[str, Any]) -> None:
        """Counts one line."""
        phase = record["phase"]
        if phase == "facts":
            self.facts |= {key: value for key, value in record.items() if key != "phase"}
            return
        if phase in _EVALUATION:
            self.seconds["evaluation"] += record["wall"]
        else:
            for kind in SHARES:
                self.seconds[kind] += record.get(kind, 0.0)
        if phase in ("fit", *_TRAINING) or record.get("in_fit"):
            self.training += record["wall"]
        if phase in _TRAINING and record.get("steps"):
            self._add_step(record)

    def _add_step(self, record: dict[str, Any]) -> None:
        self.steps += record["steps"]
        self.loop_steps += record["steps"] if record["phase"] == "loop" else 0
        self.samples += record.get("samples", 0.0)
        self.stepping += record["wall"]
        self.waited += record.get("wait", 0.0)
        self.step_seconds.append(record["wall"] / record["steps"])

    def completed(self, launcher: dict[str, float]) -> dict[str, float]:
        """The seconds, with the time between the start of the run and that of the worker, and between its last line and the end of the run.

        Clocks of two hosts differ: all of it is as long as the launcher's own clock says.
        """
        if "ended" not in launcher or "began" not in self.facts:
            return self.seconds
        missing = max(launcher["ended"] - launcher["began"] - self.total, 0.0)
        before = min(max(self.facts["began"] - launcher["began"], 0.0), missing)
        more = {"start": before, "rest": missing - before}
        return {kind: value + more.get(kind, 0.0) for kind, value in self.seconds.items()}


@dataclasses.dataclass(frozen=True)
class Summary:
    """The facts of one screen about a run.

    Attributes:
        workers: ledgers found.
        seconds: from the start of the run to its end.
        steps: training steps: updates of the weights.
        loops: whether they were made by loops of the script's own.
        samples_per_second: training samples of all workers per second of training, where they are known, else 0.
        steps_per_second: the same of steps.
        step_ms: median wall time of one training step on rank 0, in milliseconds, its first step left out.
        shares: part of all time of all ranks by kind; adds up to 1, or all 0 without ledgers.
        input_seconds: seconds of a worker, in the mean, in which it waited for data.
        training_seconds: `fit` from begin to end, or a loop of the script's own from its first update to its last: on rank 0, or, where workers train at their
            own pace, on the one that took longest.
        skew: the slowest rank (the others waited for it most), and the share of time by which it waited less than the mean.
        facts: how things are done in this run, as rank 0 says.
    """

    workers: int
    seconds: float
    steps: int
    loops: bool
    samples_per_second: float
    steps_per_second: float
    step_ms: float
    shares: dict[str, float]
    input_seconds: float
    training_seconds: float
    skew: tuple[int, float] | None
    facts: dict[str, Any]


def summarize(run_dir: Path) -> Summary:
    """Reads all ledgers of a run."""
    reader = _Reader(run_dir)
    ranks = reader.read()
    first = ranks[0] if ranks else Tally()
    completed = [rank.completed(reader.launcher()) for rank in ranks]
    whole = sum(sum(seconds.values()) for seconds in completed)
    totals = {kind: sum(seconds[kind] for seconds in completed) for kind in SHARES}
    asynchronous = first.facts.get("training") == "asynchronous"
    training = max((rank.training for rank in ranks), default=0.0) if asynchronous else first.training
    steps = sum(rank.steps for rank in ranks) if asynchronous else first.steps
    return Summary(
        workers=len(ranks),
        seconds=max((sum(seconds.values()) for seconds in completed), default=0.0),
        steps=steps,
        loops=first.loop_steps * 2 > first.steps,
        samples_per_second=sum(rank.samples for rank in ranks) / training if training else 0.0,
        steps_per_second=steps / training if training else 0.0,
        step_ms=_median(first.step_seconds[1:]) * 1e3,
        shares={kind: value / whole if whole else 0.0 for kind, value in totals.items()},
        input_seconds=totals["input"] / max(len(ranks), 1),
        training_seconds=training,
        skew=_skew(ranks),
        facts=first.facts,
    )


class SecondsByRank:
    """Seconds by kind, for each rank of a running run: each call reads only new lines."""

    def __init__(self, run_dir: Path) -> None:
        self._reader = _Reader(run_dir)

    def now(self) -> list[dict[str, float]]:
        """The sums so far, by rank."""
        return [rank.completed(self._reader.launcher()) for rank in self._reader.read()]


class _Reader:
    """Adds up the ledgers of a run."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read: dict[Path, int] = {}
        self._tallies: dict[Path, Tally] = {}

    def read(self) -> list[Tally]:
        """The sums of all lines so far, by rank."""
        for path in (self._run_dir / "ledger").glob("rank-*.jsonl"):
            self._add(path)
        return [self._tallies[path] for path in sorted(self._tallies, key=_rank)]

    def launcher(self) -> dict[str, float]:
        """When the run began and ended, as far as known."""
        path = launcher_path(self._run_dir)
        return json.loads(path.read_text()) if path.exists() else {}

    def _add(self, path: Path) -> None:
        tally = self._tallies.setdefault(path, Tally())
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            new = file.read()
        whole = new.rfind(b"\n") + 1  # the last line may be half written, by a worker that was killed
        self._read[path] = self._read.get(path, 0) + whole
        for line in new[:whole].splitlines():
            tally.add(json.loads(line))


def _rank(path: Path) -> int:
    return int(path.stem.removeprefix("rank-"))


def _skew(ranks: list[Tally]) -> tuple[int, float] | None:
    """The rank that waits least is the slowest one: the others wait for it."""
    if len(ranks) < 2 or not all(rank.stepping for rank in ranks):
        return None
    waits = [rank.waited / rank.stepping for rank in ranks]
    slowest = min(range(len(waits)), key=waits.__getitem__)
    return slowest, sum(waits) / len(waits) - waits[slowest]


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
