"""The speed of a run's steps against those of one worker."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from syrtos.report import speed
from syrtos.report.summary import Summary, summarize
from syrtos.run_dir import RunDir

REQUEST = {
    "sha256": "1",
    "program": {"name": "train.py"},
    "versions": {},
    "folder": "/",
    "options": {"batch": "global"},
}


def run_of(
    folder: Path,
    workers: int,
    compute: float,
    wait: float = 0.0,
    samples: float = 64.0,
    request: Any = (),
) -> Summary:
    """Writes the record of 20 steps, and their speed; returns their summary."""
    step = {
        "phase": "train",
        "steps": 1,
        "samples": samples / workers,
        "compute": compute,
        "wait": wait,
    }
    lines = [{**step, "wall": 9.0, "compute": 9.0}] + [{**step, "wall": compute + wait}] * 20
    for rank in range(workers):
        path = RunDir(folder).ledger(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "run.json").write_text(json.dumps(REQUEST | dict(request)))
    summary = summarize(folder)
    speed.write(folder, summary)
    return summary


def test_one_worker_has_no_speed_against_one(tmp_path: Path) -> None:
    assert speed.sentence(tmp_path / "a", run_of(tmp_path / "a", 1, 0.02)) == ""


def test_without_an_earlier_run_it_is_bounded_by_what_workers_compute(tmp_path: Path) -> None:
    said = speed.sentence(tmp_path / "a", run_of(tmp_path / "a", 2, 0.02, wait=0.01))
    assert said.startswith("not measured, at most 1.33× one worker: run the same command")


def test_where_xla_exchanges_only_a_run_of_one_worker_says_it(tmp_path: Path) -> None:
    summary = run_of(tmp_path / "a", 2, 0.02)
    summary.facts["exchange"] = "compiled"
    assert speed.sentence(tmp_path / "a", summary).startswith("not measured: run")
    run_of(tmp_path / "one", 1, 0.02)
    assert speed.sentence(tmp_path / "a", summary).startswith("1.00× the speed of one worker")


def test_an_earlier_run_of_one_worker_is_what_it_is_measured_by(tmp_path: Path) -> None:
    run_of(tmp_path / "one", 1, 0.02)
    summary = run_of(tmp_path / "two", 2, 0.02, wait=0.02)
    assert speed.sentence(tmp_path / "two", summary) == (
        "0.50× the speed of one worker (median 20.0 ms a step in one)"
    )
    found = speed.find_measured(tmp_path / "two")
    assert found is not None
    assert found.advice == "Use `-n 1`, or a larger batch."


@pytest.mark.parametrize("compute", [0.1, 0.04])
def test_workers_that_gain_more_than_their_number_had_a_disturbed_run_to_compare_with(
    tmp_path: Path, compute: float
) -> None:
    run_of(tmp_path / "one", 1, 0.2)
    summary = run_of(tmp_path / "two", 2, compute)
    said = speed.sentence(tmp_path / "two", summary)
    if compute == 0.1:
        assert said == "2.00× the speed of one worker (median 200.0 ms a step in one)"
    else:
        assert said == (
            "not known: one, of one worker, was disturbed, as it was more than 2× slower."
            " Repeat it with `-n 1`."
        )


def test_an_undisturbed_run_is_compared_with_first(tmp_path: Path) -> None:
    run_of(tmp_path / "one", 1, 0.4)
    run_of(tmp_path / "two", 2, 0.12)
    summary = run_of(tmp_path / "four", 4, 0.09)
    assert speed.sentence(tmp_path / "four", summary).startswith("1.33× the speed of 2 workers")
    run_of(tmp_path / "again", 1, 0.2)
    assert speed.sentence(tmp_path / "four", summary).startswith("2.22× the speed of one worker")


def test_an_estimate_is_no_more_than_the_number_of_workers(tmp_path: Path) -> None:
    """Rank 0 may have had the smaller part of the work."""
    summary = run_of(tmp_path / "a", 2, 0.02)
    pace = dataclasses.replace(summary.pace, alone=0.05)
    said = speed.sentence(tmp_path / "a", dataclasses.replace(summary, pace=pace))
    assert said.startswith("not measured, at most 2.00×")


def test_samples_count_where_each_worker_has_a_batch_of_its_own(tmp_path: Path) -> None:
    options = {"options": {"batch": "per-worker"}}
    run_of(tmp_path / "one", 1, 0.2, request=options)
    summary = run_of(tmp_path / "two", 2, 0.25, samples=128.0, request=options)
    assert (
        speed.sentence(tmp_path / "two", summary)
        == "1.60× the speed of one worker (median 200.0 ms a step in one)"
    )


def test_a_run_of_fewer_workers_will_do(tmp_path: Path) -> None:
    run_of(tmp_path / "two", 2, 0.2)
    summary = run_of(tmp_path / "four", 4, 0.1)
    assert (
        speed.sentence(tmp_path / "four", summary)
        == "2.00× the speed of 2 workers (median 200.0 ms a step in two)"
    )


@pytest.mark.parametrize(
    "other", [{"sha256": "2"}, {"program": {"name": "b.py"}}, {"options": {"batch": "per-worker"}}]
)
def test_runs_that_compute_something_else_are_no_measure(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    run_of(tmp_path / "one", 1, 0.02, request=other)
    run_of(tmp_path / "two", 2, 0.02)
    assert speed.find_measured(tmp_path / "two") is None


def test_a_run_of_one_whose_samples_are_not_known_is_compared_by_steps(tmp_path: Path) -> None:
    """A step that XLA compiles counts none."""
    run_of(tmp_path / "one", 1, 0.2, samples=0.0)
    run_of(tmp_path / "two", 2, 0.1, samples=256.0)
    found = speed.find_measured(tmp_path / "two")
    assert found is not None
    assert found.times == pytest.approx(2.0)
    each = {"options": {"batch": "per-worker"}}
    run_of(tmp_path / "one", 1, 0.2, samples=0.0, request=each)
    run_of(tmp_path / "two", 2, 0.1, samples=256.0, request=each)
    assert speed.find_measured(tmp_path / "two") is None


def test_backends_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    run_of(tmp_path / "one", 1, 0.02)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    run_of(tmp_path / "two", 2, 0.02)
    assert speed.find_measured(tmp_path / "two") is None


def test_damaged_files_of_other_runs_are_left_out(tmp_path: Path) -> None:
    run_of(tmp_path / "one", 1, 0.02)
    (tmp_path / "one" / "speed.json").write_text('{"x": 1}')
    run_of(tmp_path / "two", 2, 0.02)
    assert speed.find_measured(tmp_path / "two") is None
