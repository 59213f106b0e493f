"""Metrics over time: what is written down, and statistics over periods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from syrtos.run_dir import RunDir
from syrtos_jobs.observation import series
from syrtos_jobs.observation.series import STATISTICS, Sample, SeriesRecorder

MIB = 1 << 20


def at(when: float, *values: float) -> Sample:
    return Sample(when, len(values), sum(values), min(values), max(values))


def lines(path: Path, *facts: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in facts)
    )
    return path


def test_statistics_over_periods() -> None:
    samples = [
        at(125.0, 1.0, 3.0),
        at(179.9, 8.0),
        at(180.0, 5.0),
        at(400.0, 7.0),
        at(119.0, 100.0),
    ]
    found = series.over_periods(
        samples, start=130.0, end=400.0, period=60
    )  # from the minute's start on; not the end
    assert found == [at(120.0, 1.0, 3.0, 8.0), at(180.0, 5.0)]
    assert {name: of(found[0]) for name, of in STATISTICS.items()} == {
        "Average": 4.0,
        "Minimum": 1.0,
        "Maximum": 8.0,
        "Sum": 12.0,
        "SampleCount": 3,
    }
    whole = series.over_periods(samples, 0.0, 1e12, 3600)
    assert [(sample.time, sample.count) for sample in whole] == [(0.0, 6)]
    assert series.over_periods(samples, 240.0, 300.0, 60) == []


@pytest.mark.parametrize(
    ("period", "begin"), [(1, 62.0), (5, 60.0), (30, 60.0), (60, 60.0), (300, 60.0)]
)
def test_the_first_period(period: int, begin: float) -> None:
    assert series.over_periods([at(62.5, 1.0)], 62.9, 100.0, period) == [at(begin, 1.0)]


def test_values_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(series.time, "time", lambda: now)
    SeriesRecorder(tmp_path).add([("loss", 3.0), ("loss", 1.0), ("acc", 0.5)])
    assert series.of_job(tmp_path, True) == {
        "loss": [at(1000.0, 3.0, 1.0)],
        "acc": [at(1000.0, 0.5)],
    }
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"name": "loss", "ti')  # of a process that was killed
    now = 1001.0
    recorder = SeriesRecorder(tmp_path)
    recorder.add([("loss", 2.0)])
    recorder.add([])
    recorder.add([("loss", 1e200)])  # CloudWatch takes none that is larger than 2^360
    assert series.of_job(tmp_path, True)["loss"] == [at(1000.0, 3.0, 1.0), at(1001.0, 2.0)]


def test_a_long_record_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "_LIMIT", 20_000)
    now = 0.0
    monkeypatch.setattr(series.time, "time", lambda: now)
    recorder = SeriesRecorder(tmp_path)
    for number in range(2000):
        now = 10_000 + number / 4
        recorder.add(
            [("loss", float(number)), ("rare", 1.0)]
            if number % 100 == 0
            else [("loss", float(number))]
        )
        assert (tmp_path / "metrics.jsonl").stat().st_size < 21_000
    found = series.of_job(tmp_path, True)
    assert sum(sample.count for sample in found["rare"]) == 20
    (whole,) = series.over_periods(found["loss"], 0.0, 1e9, 10**6 * 60)
    assert (whole.count, whole.sum, whole.min, whole.max) == (2000, sum(range(2000)), 0.0, 1999.0)
    assert len(found["loss"]) > 20


def test_damaged_records(tmp_path: Path) -> None:
    good = {"name": "loss", "time": 1.0, "count": 1, "sum": 2.0, "min": 2.0, "max": 2.0}
    bad = [
        {**good, "sum": "x"},
        {**good, "count": 0},
        {**good, "max": float("nan")},
        {**good, "name": 3},
        {**good, "more": 1},
    ]
    lines(tmp_path / "metrics.jsonl", "", "[" * 5000, "3", "{}", *bad, good, '{"name": "lo')
    assert series.of_job(tmp_path, True) == {"loss": [at(1.0, 2.0)]}
    assert series.of_job(tmp_path / "nowhere", True) == series.of_job(tmp_path, False) == {}


def test_ends_of_epochs(tmp_path: Path) -> None:
    first = [
        {"epoch": 1, "time": 10.0, "logs": {"loss": 2.0, "val_loss": float("nan"), "text": "x"}},
        {"epoch": 2, "logs": {}},
    ]
    lines(
        RunDir(tmp_path / "attempt-1").epochs,
        *first,
        {"logs": None, "time": 3.0},
        {"time": "x", "logs": {"loss": 1}},
    )
    lines(
        RunDir(tmp_path / "attempt-2" / "generation-2").epochs,
        {"epoch": 1, "time": 20.0, "logs": {"loss": 1.0}},
    )
    assert series.of_job(tmp_path, False) == {"loss": [at(10.0, 2.0), at(20.0, 1.0)]}


def test_instances(tmp_path: Path) -> None:
    machine = {
        "number": 0,
        "cpu": 50.0,
        "cores": 4,
        "memory": 1 * MIB,
        "memory_total": 4 * MIB,
        "gpus": [],
    }
    gpus = [
        {"busy": 30, "memory": 1.0, "memory_total": 2.0},
        {"busy": 60, "memory": 2.0, "memory_total": 2.0},
    ]
    usage = {"time": 5.0, "rank": 0, "memory": 7}
    lines(
        RunDir(tmp_path / "attempt-1").usage(0),
        {**usage, "machine": machine},
        usage,
        {**usage, "machine": {"number": 0}},
    )
    lines(
        RunDir(tmp_path / "attempt-1").usage(1),
        {**usage, "machine": {**machine, "number": 1, "gpus": gpus}},
        "{}",
    )
    shares = {"CPUUtilization": [at(5.0, 200.0)], "MemoryUtilization": [at(5.0, 25.0)]}
    of_gpus = {"GPUUtilization": [at(5.0, 90.0)], "GPUMemoryUtilization": [at(5.0, 150.0)]}
    assert series.of_hosts(tmp_path) == {1: shares, 2: shares | of_gpus}
