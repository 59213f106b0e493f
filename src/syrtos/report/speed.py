"""The speed of a run's steps against those of one worker.

The speed comes from an earlier run of the same script, or is an upper bound.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.checkpoint import durable
from syrtos.json_files import document
from syrtos.report import exchanged
from syrtos.report.ledger_lines import without_odd_members
from syrtos.report.summary import Summary
from syrtos.run_dir import RunDir

_FILE = "speed.json"
_ENOUGH_STEPS = 5  # for a median of steps that says something
_MORE_THAN_NOISE = 1.005  # times what so many workers can gain


@dataclasses.dataclass(frozen=True)
class Speed:
    """The rate of a run beside that of an earlier run with another number of workers.

    Attributes:
        times: the run's training samples per second of steps, divided by those of the earlier run.
        workers: the number of workers of the earlier run.
        run: the name of the earlier run's folder.
        step: s of the earlier run's step.
        most: how many times as many workers the run has.
    """

    times: float
    workers: int
    run: str
    step: float
    most: float

    @property
    def is_disturbed(self) -> bool:
        """Returns whether the earlier run was slower than it can have been by itself.

        N workers compute no more than N times as fast as one.
        """
        return self.times > _MORE_THAN_NOISE * self.most

    @property
    def fewer(self) -> str:
        """The workers of the earlier run, in words."""
        return "one worker" if self.workers == 1 else f"{self.workers} workers"

    @property
    def advice(self) -> str:
        """The change that a gain below 1 asks for; empty for all others."""
        return f"Use `-n {self.workers}`, or a larger batch." if self.times < 1.0 else ""

    def __str__(self) -> str:
        if self.is_disturbed:
            return (
                f"not known: {self.run}, of {self.fewer}, was disturbed, as it was more than"
                f" {self.most:g}× slower. Repeat it with `-n {self.workers}`."
            )
        return f"{self.times:.2f}× the speed of {self.fewer} (median {self.step * 1e3:,.1f} ms a step in {self.run})"


def write(run_dir: Path, summary: Summary) -> None:
    """Writes down the speed of a run's steps, for comparison by runs with other numbers of workers.

    Where that is not known, what an earlier run in the folder has written is removed.
    """
    if not _is_known(summary):
        (run_dir / _FILE).unlink(missing_ok=True)
        return
    facts = {
        "workers": summary.workers,
        "step": summary.pace.step,
        "samples": summary.pace.samples,
        "backend": settings.environment().get("KERAS_BACKEND"),
    }
    durable.replace(run_dir / _FILE, (json.dumps(facts) + "\n").encode())


def find_measured(run_dir: Path) -> Speed | None:
    """Returns the speed against the same script's last run with fewer workers beside ``run_dir``.

    A run that was not disturbed is preferred, then one of one worker. None if there is no such run, or if this one has not written
    its speed.
    """
    request, mine = _request_of(run_dir), _speed_of(run_dir)
    if not mine:
        return None
    found = [(folder.name, _speed_of(folder)) for folder in _earlier(run_dir, request)]
    measured = [
        Speed(times, theirs["workers"], name, theirs["step"], mine["workers"] / theirs["workers"])
        for name, theirs in found
        if theirs
        and theirs["workers"] < mine["workers"]
        and theirs.get("backend") == mine.get("backend")
        and (times := _ratio(mine, theirs, batch_of(request)))
    ]
    # the last of the best, as min() is stable
    return min(measured, key=lambda each: (each.is_disturbed, each.workers != 1), default=None)


def _speed_of(folder: Path) -> dict[str, Any]:
    """Returns the speed of a run; empty if it has written none, or the file is damaged."""
    found = document(folder / _FILE)
    sound = all(isinstance(found.get(name), int | float) for name in ("workers", "step", "samples"))
    return found if sound and found["step"] > 0 else {}


def _request_of(folder: Path) -> dict[str, Any]:
    return without_odd_members(RunDir(folder).request())


def _earlier(run_dir: Path, request: Mapping[str, Any]) -> list[Path]:
    """Returns the folders of runs beside ``run_dir`` that compute the same, the newest first."""
    ages: dict[Path, float] = {}
    for path in run_dir.parent.glob(f"*/{_FILE}"):
        # A folder may be removed just now.
        with contextlib.suppress(OSError):
            ages[path.parent] = path.stat().st_mtime
    folders = sorted(ages, key=lambda folder: ages[folder], reverse=True)
    return [
        folder for folder in folders if folder != run_dir and _computes_the_same(request, folder)
    ]


def _ratio(mine: Mapping[str, Any], theirs: Mapping[str, Any], batch: Any) -> float:
    """Returns how many times as fast one run's steps are as another's; 0 if that is not known."""
    # A step has the same samples whatever the number of workers, but where each worker has a batch
    # of its own.
    steps = theirs["step"] / mine["step"]
    if batch != "per-worker":
        return steps
    return (
        steps * mine["samples"] / theirs["samples"]
        if mine["samples"] and theirs["samples"]
        else 0.0
    )


def sentence(run_dir: Path, summary: Summary) -> str:
    """Returns the speed in words; empty for one worker, and where steps are not comparable."""
    if summary.workers < 2 or not _is_known(summary):
        return ""
    if found := find_measured(run_dir):
        return str(found)
    if exchanged.is_hidden(summary.facts):
        return "not measured: run the same command with `-n 1` to know it."
    most = min(summary.pace.alone / summary.pace.step, summary.workers)
    return f"not measured, at most {most:.2f}× one worker: run the same command with `-n 1` to know it."


def _is_known(summary: Summary) -> bool:
    """Returns whether steps were timed that are those of all workers together."""
    return summary.pace.steps >= _ENOUGH_STEPS and summary.facts.get("training") != "asynchronous"


def _computes_the_same(request: Mapping[str, Any], folder: Path) -> bool:
    """Returns whether the run in ``folder`` is of the same script, arguments and kind of batch."""
    theirs = _request_of(folder)
    names = ("sha256", "program", "versions", "folder")
    same = bool(request.get("sha256")) and all(
        request.get(name) == theirs.get(name) for name in names
    )
    return same and batch_of(request) == batch_of(theirs)


def batch_of(request: Mapping[str, Any]) -> str:
    """Returns how a run was asked to divide batches: "global" or "per-worker"."""
    return str((request.get("options") or {}).get("batch") or settings.Options().batch)
