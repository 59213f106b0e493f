"""The progress of a run that goes on, from the last lines of its files."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from syrtos.json_files import parse_line
from syrtos.observe.ledger import pause
from syrtos.report.ledger_lines import Line, is_sound_line, is_sound_point, is_sound_sample
from syrtos.run_dir import RunDir

# Bytes at the end of a file that are read: some hundred lines, however long the run is.
_END = 1 << 16
# Points that the time of a step is taken from, and lines of steps that the speed is.
_POINTS, _STEPS = 50, 100
# Seconds without a line after which that is said, in a run whose workers write one each second.
_SILENT = 60.0


@dataclasses.dataclass(frozen=True)
class RunProgress:
    """The progress of a run.

    Attributes:
        restarts: the number of generations of workers after the first.
        is_starting: whether the newest generation has made no step yet.
        silent: seconds since a worker has written anything; None: none has in this generation.
        fit: the number of the call of `fit` in the script, from 1.
        epoch: the epoch that goes on or has ended last, from 1; 0: there was none.
        epochs: the epochs of that `fit`; 0: not known.
        step: the step in the epoch, or of a loop of the script's own; 0: there was none.
        steps: the steps of an epoch; 0: not known.
        late: seconds since that step was written down, where lines came faster before; else 0.
        loss: the last loss; None: not known.
        samples_per_second: training samples of all workers in their last steps; 0: not known.
        seconds_left: seconds until the end of that `fit`; None: not known.
    """

    restarts: int = 0
    is_starting: bool = True
    silent: float | None = None
    fit: int = 1
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    steps: int = 0
    late: float = 0.0
    loss: float | None = None
    samples_per_second: float = 0.0
    seconds_left: float | None = None

    def parts(self) -> Iterator[str]:
        """Yields the place of the run, its loss and its restarts, in words."""
        if self.epoch:
            fit = f"fit {self.fit}, " * (self.fit > 1)
            yield f"{fit}epoch {self.epoch}{f'/{self.epochs}' * bool(self.epochs)}"
        if self.step:
            yield f"step {self.step:,}{f'/{self.steps:,}' * bool(self.steps)}"
        if self.loss is not None:
            yield f"loss {self.loss:.4g}"

    def restarts_in_words(self) -> Iterator[str]:
        """Yields the number of restarts, if there were any."""
        if self.restarts:
            yield f"{self.restarts} restart{'s' * (self.restarts > 1)}"

    def describe(self) -> str:
        """Returns how far a run came that has ended; empty if it made no step."""
        return ", ".join([*self.parts(), *self.restarts_in_words()])

    def describe_running(self) -> str:
        """Returns how far a run is that goes on, and how fast it is."""
        place = list(self.parts())
        if self.is_starting:
            before = f"; the generation before came to {', '.join(place)}" * bool(place)
            return ", ".join(["no training step yet", *self.restarts_in_words()]) + before
        if self.seconds_left == 0:  # other work of the script
            place.append("this `fit` has ended")
        elif self.late:
            place.append(f"last step {_duration(self.late)} ago")
        elif self.samples_per_second:
            place.append(f"{self.samples_per_second:,.0f} samples/s")
        if self.seconds_left and not self.late:
            place.append(f"about {_duration(self.seconds_left)} left")
        return ", ".join([*place, *self.restarts_in_words()])


def read_progress(run_dir: Path) -> RunProgress:
    """Returns how far a run is: the place of its newest generation that has made a step."""
    folders, now = RunDir(run_dir).generations(), time.time()
    found = RunProgress(restarts=len(folders) - 1, silent=_silent(folders[-1], now))
    for folder in reversed(folders):
        is_newest, files = folder == folders[-1], RunDir(folder)
        points, ends = (
            [
                line
                for line in _last_lines(path, is_sound_point)
                if line.keys() >= {"time", "trained", "epoch"}
            ]
            for path in (files.curve, files.epochs)
        )
        if points or ends:
            found = _in_fit(found, points, ends, now)
        elif trained := _steps_sampled(folder):
            found = dataclasses.replace(found, step=trained)
        else:
            continue
        if is_newest:
            speed = _samples_per_second(folder)
            return dataclasses.replace(found, is_starting=False, samples_per_second=speed)
        return dataclasses.replace(found, seconds_left=None, late=0.0)
    return found


def silence_worth_a_word(progress: RunProgress, began: float) -> float | None:
    """Returns the seconds for which a run has given no sign of life, if they are too many.

    ``began``: when its launcher began, s since the epoch.
    """
    now = time.time()
    silent = now - began if progress.silent is None else min(progress.silent, now - began)
    # In long runs lines are rarer.
    return silent if silent > _SILENT + 2 * pause(now - began) else None


def _in_fit(
    found: RunProgress, points: Sequence[Line], ends: Sequence[Line], now: float
) -> RunProgress:
    last = max([*points[-1:], *ends[-1:]], key=lambda line: line["time"])
    fit, steps = int(last.get("fit") or 1), int(last.get("steps_per_epoch") or 0)
    # The line of an epoch's end counts steps from the beginning of `fit`.
    step = int(last["batch"]) if "batch" in last else steps
    loss = (last.get("logs") or {}).get("loss")
    mine = [line for line in points if line.get("fit") == fit]
    over = [line for line in ends if line.get("fit") == fit]
    return dataclasses.replace(
        found,
        fit=fit,
        epoch=int(last.get("epoch") or 0),
        epochs=int(last.get("epochs") or 0),
        step=step,
        steps=steps,
        late=_late(points, now - last["time"]),
        loss=None if loss is None else float(loss),
        seconds_left=_seconds_left(last, step, mine, over),
    )


def _late(points: Sequence[Line], age: float) -> float:
    """Returns the age of the last step if it is long beside the time between the lines before."""
    between = points[-1]["time"] - points[-2]["time"] if len(points) > 1 else 0.0
    return age if age > _SILENT + 3 * between else 0.0


def _seconds_left(
    last: Line, step: int, points: Sequence[Line], ends: Sequence[Line]
) -> float | None:
    """Returns the seconds until the end of `fit`, by the epochs so far or else by the steps."""
    epochs, steps = int(last.get("epochs") or 0), int(last.get("steps_per_epoch") or 0)
    if not epochs or not steps:
        return None
    per_epoch = _epoch_seconds(ends)
    if per_epoch is None:
        recent = points[-_POINTS:]
        made = recent[-1]["trained"] - recent[0]["trained"] if recent else 0
        if made <= 0:
            return None
        per_epoch = steps * (recent[-1]["time"] - recent[0]["time"]) / made
    return max(epochs - int(last["epoch"]) + 1 - step / steps, 0.0) * per_epoch


def _epoch_seconds(ends: Sequence[Line]) -> float | None:
    """Returns the median time of the last epochs, from end to end; None before the second one."""
    times = [float(line["time"]) for line in ends[-_POINTS:]]
    between = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(between) if between else None


def _samples_per_second(folder: Path) -> float:
    """Returns the samples per second of all workers in their last steps; 0 if none are known."""
    total = 0.0
    for path in RunDir(folder).ledgers().values():
        lines = _last_lines(path, is_sound_line)
        steps = [line for line in lines if line.get("samples") and line.get("steps")]
        recent = [line for line in steps if line["phase"] == "train"][-_STEPS:]
        if seconds := sum(line["wall"] for line in recent):
            total += sum(line["samples"] for line in recent) / seconds
    return total


def _silent(folder: Path, now: float) -> float | None:
    times = [
        entry.stat().st_mtime
        for place in (RunDir(folder).records, RunDir(folder).logs)
        if place.is_dir()
        for entry in os.scandir(place)
        if entry.name.endswith((".jsonl", ".log"))
    ]
    return max(now - max(times), 0.0) if times else None


def _steps_sampled(folder: Path) -> int:
    """Returns the training steps of rank 0 by its last sample; 0 without one."""
    samples = _last_lines(RunDir(folder).usage(0), is_sound_sample)
    return int(samples[-1].get("trained", 0)) if samples else 0


def _last_lines(path: Path, is_sound: Callable[[Line], bool]) -> list[dict[str, Any]]:
    """Returns the last whole lines of a file, without damaged ones; none without a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _END, 0))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    # The first line may be cut off, and the last one half written.
    whole = lines[1 if size > _END else 0 : -1]
    return [found for line in whole if (found := parse_line(line)) is not None and is_sound(found)]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
