"""The values of a job's metrics over time, and the use of its instances.

They are kept in files of JSON lines, of which only whole lines are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from syrtos.json_files import parse_line
from syrtos.run_dir import RunDir
from syrtos_jobs.store import runs
from syrtos_jobs.store.home import write

_LIMIT = 4 << 20  # bytes of a job's file; then neighbours become one
_LARGEST = 2.0**360  # CloudWatch takes no number beyond


@dataclasses.dataclass(frozen=True)
class Sample:
    """The values that a metric had at about one time, in seconds since 1970."""

    time: float
    count: float
    sum: float
    min: float
    max: float


STATISTICS: Mapping[str, Callable[[Sample], float]] = {
    "Average": lambda sample: sample.sum / sample.count,
    "Minimum": lambda sample: sample.min,
    "Maximum": lambda sample: sample.max,
    "Sum": lambda sample: sample.sum,
    "SampleCount": lambda sample: sample.count,
}


def over_periods(samples: Sequence[Sample], start: float, end: float, period: int) -> list[Sample]:
    """Joins the samples from ``start`` until ``end`` into one for each period that has some.

    The time of a joined sample is its period's start.
    """
    # as in CloudWatch, the first period begins at a whole minute, or at a multiple of a period that
    # is shorter
    grain = min(period, 60)
    begin = math.floor(start / grain) * grain
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        if begin <= sample.time < end:
            found.setdefault(int((sample.time - begin) // period), []).append(sample)
    return [
        _join_samples(float(begin + number * period), some)
        for number, some in sorted(found.items())
    ]


def _join_samples(when: float, samples: Sequence[Sample]) -> Sample:
    total, count = sum(sample.sum for sample in samples), sum(sample.count for sample in samples)
    return Sample(
        when,
        count,
        total,
        min(sample.min for sample in samples),
        max(sample.max for sample in samples),
    )


def _one(when: float, value: float) -> Sample:
    return Sample(when, 1, value, value, value)


class SeriesRecorder:
    """Writes down the values that a job's definitions find in its output."""

    def __init__(self, job_folder: Path) -> None:
        self._path = _path(job_folder)
        self._begun = False

    def add(self, values: Sequence[tuple[str, float]]) -> None:
        """Adds values that were found now, each with the name of its metric.

        On a full disk the values are dropped.
        """
        found: dict[str, list[Sample]] = {}
        now = round(time.time(), 3)
        for name, value in values:
            if abs(value) <= _LARGEST:
                found.setdefault(name, []).append(_one(now, value))
        if not found:
            return
        text = _text({name: [_join_samples(now, samples)] for name, samples in found.items()})
        with contextlib.suppress(OSError):
            with self._path.open("a", encoding="utf-8") as file:
                # a process that was killed may have left half a line, which must not take the first
                # new one with it
                file.write(text if self._begun else "\n" + text)
                size = file.tell()
            self._begun = True
            if size > _LIMIT:
                self._thin()

    def _thin(self) -> None:
        # samples of 1, 2, 4, ... seconds become one, until half of the room is free; sums and
        # counts stay the same
        samples, width, text = _read(self._path), 1, ""
        while width == 1 or len(text.encode()) > _LIMIT // 2:
            samples = {name: _merge_samples(some, width) for name, some in samples.items()}
            text, width = _text(samples), width * 2
        write(self._path, text)


def _merge_samples(samples: Sequence[Sample], width: int) -> list[Sample]:
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(int(sample.time // width), []).append(sample)
    return [_join_samples(some[0].time, some) for some in found.values()]


def _text(samples: Mapping[str, Sequence[Sample]]) -> str:
    lines = (
        {"name": name, **dataclasses.asdict(sample)}
        for name, some in samples.items()
        for sample in some
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def of_job(job_folder: Path, defined: bool) -> dict[str, list[Sample]]:
    """Returns the samples of each metric by its name.

    Args:
        defined: whether the job has definitions of metrics. The metrics of a job without any are
            the logs of Keras at the ends of epochs.
    """
    return _read(_path(job_folder)) if defined else _of_epochs(job_folder)


def of_hosts(job_folder: Path) -> dict[int, dict[str, list[Sample]]]:
    """Returns the use of a job's instances, by their number and by SageMaker's names of metrics.

    The number of ``algo-1`` is 1.
    """
    found: dict[int, dict[str, list[Sample]]] = {}
    for path in (
        path
        for run in runs.folders(job_folder)
        for path in sorted(run.glob("ledger/usage-*.jsonl"))
    ):
        for line in _lines(path):
            # a script can write to its run directory: lines may have other fields than ours
            with contextlib.suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
                # one worker of each machine notes its use
                if machine := line.get("machine"):
                    _add(
                        found.setdefault(int(machine["number"]) + 1, {}),
                        line["time"],
                        _percent(machine),
                    )
    return dict(sorted(found.items()))


def _percent(machine: Mapping[str, Any]) -> dict[str, float]:
    """Returns a machine's use in percent, as SageMaker counts: 4 fully used processors are 400%."""
    shares = {
        "CPUUtilization": machine["cpu"] * machine["cores"],
        "MemoryUtilization": 100 * machine["memory"] / machine["memory_total"],
    }
    gpus = machine.get("gpus") or []
    # a part of a GPU (MIG) does not tell how busy it is
    if gpus and all(gpu["busy"] is not None for gpu in gpus):
        shares["GPUUtilization"] = sum(gpu["busy"] for gpu in gpus)
    if gpus and all(gpu["memory"] is not None and gpu["memory_total"] for gpu in gpus):
        shares["GPUMemoryUtilization"] = sum(
            100 * gpu["memory"] / gpu["memory_total"] for gpu in gpus
        )
    return shares


def _of_epochs(job_folder: Path) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for run in runs.folders(job_folder):
        for line in _lines(RunDir(run).epochs):
            logs = line.get("logs")
            _add(found, line.get("time"), logs if isinstance(logs, dict) else {})
    return found


def _add(found: dict[str, list[Sample]], when: object, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if _is_number(when) and _is_number(value) and abs(value) <= _LARGEST:
            found.setdefault(name, []).append(_one(when, value))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _path(job_folder: Path) -> Path:
    return job_folder / "metrics.jsonl"


def _read(path: Path) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for line in _lines(path):
        name = line.pop("name", None)
        # a line with other fields than ours
        with contextlib.suppress(TypeError):
            sample = Sample(**line)
            if isinstance(name, str) and all(map(_is_number, line.values())) and sample.count > 0:
                found.setdefault(name, []).append(sample)
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the whole lines of a file, which may be missing."""
    try:
        with path.open("rb") as file:
            data = file.read(4 * _LIMIT)
    except OSError:
        return
    yield from (facts for line in data.splitlines() if (facts := parse_line(line)) is not None)
