"""The figures of a run while it goes on, for dashboards and trackers."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos.json_files import Tail, is_number
from syrtos.observe.clock import KINDS
from syrtos.report.ledger_lines import Line, is_sound_line, is_sound_point, is_sound_sample
from syrtos.report.summary import TRAINING
from syrtos.run_dir import RunDir

# Steps that the recent time of a step is the median of.
_RECENT = 100


@dataclasses.dataclass(frozen=True)
class FiguresPoint:
    """Numbers at one moment, by name.

    Metrics have the names that Keras gives them, those of an epoch's end with `epoch/` before;
    figures of the system begin with `system/`.

    Attributes:
        time: s since the epoch.
        step: training steps so far.
        values: the numbers.
    """

    time: float
    step: int
    values: Mapping[str, float]


@dataclasses.dataclass
class _WorkerSums:
    """The sums and latest values from the lines of one worker so far."""

    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    steps: int = 0
    recent: collections.deque[tuple[float, float]] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_RECENT)
    )
    usage: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Figures:
    """The figures of one run, which each call of `points` updates from the new lines of its files.

    Attributes:
        trained_before: training steps of earlier generations that the present one goes on from.
        workers: the figures of each worker of the present generation, by rank.
        logs: the last value of each metric.
        learning_rate: the last known one.
        epoch: the last epoch that is known.
        generations: the number of generations of workers so far.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._folder = run_dir
        self._tails: dict[Path, Tail] = {}
        self._ended: set[tuple[Any, Any]] = set()
        self.generations = 1
        self.trained_before = 0
        self.workers: dict[int, _WorkerSums] = {}
        self.logs: dict[str, float] = {}
        self.learning_rate: float | None = None
        self.epoch = 0

    @property
    def steps(self) -> int:
        """Training steps of the run so far."""
        return self.trained_before + max(
            (worker.steps for worker in self.workers.values()), default=0
        )

    @property
    def step_seconds(self) -> float | None:
        """The median time of the last steps of the first worker; None before its second step."""
        recent = next((worker.recent for _, worker in sorted(self.workers.items())), ())
        return statistics.median(wall for wall, _ in recent) if len(recent) > 1 else None

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second of all workers, in their last steps."""
        rates = [
            sum(n for _, n in w.recent) / sum(s for s, _ in w.recent)
            for w in self.workers.values()
            if len(w.recent) > 1 and sum(s for s, _ in w.recent)
        ]
        return sum(rates) if rates else None

    def points(self) -> list[FiguresPoint]:
        """Returns the points that are new since the last call, in order of time."""
        found: list[FiguresPoint] = []
        folders = RunDir(self._run_dir).generations()
        for folder in folders[folders.index(self._folder) :]:
            if folder != self._folder:
                self._folder, self.workers, self.generations = folder, {}, self.generations + 1
                self.trained_before = 0
            self._take_ledgers(folder)
            found += self._of_curves(folder)
            found += self._of_usage(folder)
        return sorted(found, key=lambda point: point.time)

    def _lines(self, path: Path, is_sound: Callable[[Line], bool]) -> list[dict[str, Any]]:
        return self._tails.setdefault(path, Tail(path, is_sound)).read()

    def _take_ledgers(self, folder: Path) -> None:
        for rank, path in RunDir(folder).ledgers().items():
            worker = self.workers.setdefault(rank, _WorkerSums())
            for line in self._lines(path, is_sound_line):
                if line["phase"] == "facts":
                    self.trained_before = int(line.get("trained", self.trained_before))
                    continue
                for kind in KINDS:
                    worker.seconds[kind] += line.get(kind, 0.0)
                if line["phase"] in TRAINING and line.get("steps"):
                    worker.steps += line["steps"]
                    worker.recent.append(
                        (line["wall"] / line["steps"], line.get("samples", 0.0) / line["steps"])
                    )

    def _of_curves(self, folder: Path) -> Iterator[FiguresPoint]:
        for path, prefix in ((RunDir(folder).curve, ""), (RunDir(folder).epochs, "epoch/")):
            for line in self._lines(path, is_sound_point):
                end = line.get("fit", 0), line.get("epoch")
                if prefix and end in self._ended:
                    # a generation that goes on from the end of an epoch tells it again
                    continue
                self._ended |= {end} if prefix else set()
                self.logs |= line.get("logs") or {}
                self.epoch = int(line.get("epoch") or self.epoch)
                values = {
                    f"{prefix}{name}": value for name, value in (line.get("logs") or {}).items()
                }
                if line.get("learning_rate") is not None:
                    self.learning_rate = values[f"{prefix}learning_rate"] = line["learning_rate"]
                yield FiguresPoint(
                    line["time"], self.trained_before + int(line.get("trained", 0)), values
                )

    def _of_usage(self, folder: Path) -> Iterator[FiguresPoint]:
        for path in RunDir(folder).usages():
            for line in self._lines(path, is_sound_sample):
                rank = int(line.get("rank", 0))
                self.workers.setdefault(rank, _WorkerSums()).usage = line
                step = self.trained_before + int(line.get("trained", 0))
                yield FiguresPoint(
                    line["time"],
                    step,
                    {name: value for name, value in _of_system(line, rank) if is_number(value)},
                )


def _of_system(line: Line, rank: int) -> Iterable[tuple[str, object]]:
    """Yields the figures of a sample by name; a container does not tell all of them."""
    yield f"system/rank {rank} memory bytes", line.get("memory")
    machine = line.get("machine")
    if machine:
        place = f"system/host {machine['number']}"
        yield f"{place} cpu percent", machine.get("cpu")
        yield f"{place} memory bytes", machine.get("memory")
        for number, gpu in enumerate(machine.get("gpus") or ()):
            yield f"{place} gpu {number} percent", gpu.get("busy")
            yield f"{place} gpu {number} memory bytes", gpu.get("memory")
