"""What a step would take with more workers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from syrtos.cli import main
from syrtos.report import forecast, speed
from syrtos.report.forecast import Layout, Link, MeasuredStep
from syrtos.run_dir import RunDir

STEP = MeasuredStep(
    workers=2,
    samples=32.0,
    own=0.1,
    fixed=0.04,
    waits=0.0,
    update=0.02,
    inside=0.01,
    gradients=1e8,
    sums=5.0,
    meetings=8.0,
)
LINK = Link(latency=1e-4, bandwidth=1e9)


def write(run_dir: Path, ranks: int = 2, steps: int = 6, **facts: Any) -> None:
    for rank in range(ranks):
        path = RunDir(run_dir).ledger(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines: list[dict[str, Any]] = [{"phase": "facts", "began": 1.0}]
        for step in range(steps):
            slow = 10.0 if step < 2 else 1.0  # the first are traced
            lines.append(
                {
                    "phase": "train",
                    "steps": 2,
                    "samples": 64.0,
                    "wall": 0.22 * slow,
                    "exchange": 0.02,
                    "update": 0.04,
                    "compute": 0.12,
                    "input": 0.02,
                }
            )
        lines.append(
            {
                "phase": "facts",
                "gradient_bytes": 100_000_000,
                "gradient_sums": 5.0,
                "meetings": 8.0,
                **facts,
            }
        )
        path.write_text(
            "".join(json.dumps(line) + "\n" for line in lines) + '{"phase": "tr'
        )  # a killed worker's last line


def test_a_run_is_measured_by_its_median_step(tmp_path: Path) -> None:
    write(tmp_path)
    found = forecast.measured_step(tmp_path)
    assert found.own == pytest.approx(0.1)
    assert (found.workers, found.samples, found.update, found.inside) == (2, 32.0, 0.02, 0.01)
    assert found.fixed == pytest.approx(0.03)  # computing and reading grow with the samples
    assert (found.gradients, found.sums, found.meetings) == (1e8, 5.0, 8.0)


def test_records_that_each_worker_reads_whole_do_not_grow_with_its_samples(tmp_path: Path) -> None:
    write(tmp_path, input="sliced")
    assert forecast.measured_step(tmp_path).fixed == pytest.approx(0.04)


@pytest.mark.parametrize(("alone", "fixed"), [(0.15, 0.05), (0.05, 0.1), (9.0, 0.0)])
def test_a_run_of_one_worker_tells_what_grows_with_the_samples(
    tmp_path: Path, alone: float, fixed: float
) -> None:
    write(tmp_path)
    assert forecast.measured_step(tmp_path, alone).fixed == pytest.approx(fixed)


def test_workers_divide_the_global_batch() -> None:
    four = forecast.with_workers(STEP, 4, "global")
    assert (four.samples, four.own) == (16.0, pytest.approx(0.04 + 0.03))
    assert forecast.with_workers(STEP, 1, "global").own == pytest.approx(0.04 + 0.12)
    assert forecast.with_workers(STEP, 2, "global") == STEP


def test_a_worker_has_no_less_than_one_sample() -> None:
    many = forecast.with_workers(STEP, 640, "global")
    assert many.own == pytest.approx(0.04 + 0.06 / 32)
    unknown = dataclasses.replace(STEP, samples=0.0)
    assert forecast.with_workers(unknown, 4, "global").own == pytest.approx(0.04 + 0.03)


def test_a_batch_of_each_worker_stays() -> None:
    assert forecast.with_workers(STEP, 64, "per-worker") == STEP


def test_on_one_host_a_step_is_what_it_was() -> None:
    assert forecast.hierarchical(STEP, Layout(2, 1, LINK)) == pytest.approx(0.11)
    assert forecast.ring(STEP, Layout(2, 1, LINK)) == pytest.approx(0.11)


def test_one_worker_exchanges_nothing() -> None:
    assert forecast.hierarchical(STEP, Layout(1, 1, LINK)) == pytest.approx(0.1)


def test_between_two_hosts_all_bytes_travel_once() -> None:
    rounds = 8 + 2 * 5
    assert forecast.hierarchical(STEP, Layout(4, 2, LINK)) == pytest.approx(
        0.11 + 0.1 + rounds * 1e-4
    )


def test_a_ring_of_many_waits_for_its_rounds() -> None:
    place = Layout(64, 16, LINK)
    more = forecast.ring(STEP, place) - forecast.hierarchical(STEP, place)
    assert more == pytest.approx((2 * 63 - 2 * 4) * 5 * 1e-4)


def test_waiting_for_slower_workers_is_a_cost_of_several_workers() -> None:
    waiting = dataclasses.replace(STEP, waits=0.2)
    assert forecast.hierarchical(waiting, Layout(2, 1, LINK)) == pytest.approx(0.31)
    assert forecast.hierarchical(waiting, Layout(1, 1, LINK)) == pytest.approx(0.1)
    assert forecast.local(waiting, Layout(2, 1, LINK)) == pytest.approx(0.3 + 0.01 / 32)


def test_workers_that_meet_rarely_pay_their_part() -> None:
    place = Layout(4, 2, LINK)
    assert forecast.local(STEP, place) == pytest.approx(
        0.1 + (forecast.hierarchical(STEP, place) - 0.1) / 32
    )


def test_a_sharded_update_is_divided() -> None:
    place = Layout(4, 2, LINK)
    assert forecast.sharded_step(STEP, place) == pytest.approx(
        forecast.hierarchical(STEP, place) - 0.015 + 0.024
    )


@pytest.mark.parametrize(
    ("ranks", "steps", "facts", "says"),
    [
        (0, 0, {}, "is not the run directory of a run"),
        (1, 6, {}, "had one worker"),
        (2, 6, {"hosts": 2}, "had several hosts"),
        (2, 2, {}, "has not come to the end of a `fit`"),
        (2, 6, {"gradient_sums": 0.0}, "has exchanged no gradients by MPI"),
        (2, 6, {"asked_to_sync_every": 8}, "was made with --sync-every"),
        (2, 6, {"compress": "bf16"}, "was made with --compress"),
    ],
)
def test_what_can_t_be_forecast_from_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ranks: int,
    steps: int,
    facts: dict[str, Any],
    says: str,
) -> None:
    write(tmp_path, ranks, steps, **facts)
    assert main(["forecast", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [["-n", "0"], ["--gbit", "-1"], ["--gbit", "nan"], ["--latency", "0"], ["--per-host", "0"]],
)
def test_numbers_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    write(tmp_path)
    assert main(["forecast", str(tmp_path), *wrong]) == 2
    assert f"`{wrong[0]}` must be more than 0" in capsys.readouterr().err


def test_a_run_that_was_started_again_is_measured_by_its_last_generation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, steps=1)
    write(tmp_path / "generation-2")
    write(tmp_path / "generation-3", steps=1)
    assert main(["forecast", str(tmp_path)]) == 0
    assert "Measured with 2 workers" in capsys.readouterr().out


def test_a_table_and_lines_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    words = ["forecast", str(tmp_path), "-n", "2", "4", "--gbit", "8", "--batch", "per-worker"]
    assert main(words) == 0
    says = " ".join(capsys.readouterr().out.split())
    assert (
        "Measured with 2 workers on one host: 110 ms a step, of which 0.0 in waiting for slower workers and 10.0 in exchanging"
        in says
    )
    assert "`--batch per-worker`: each worker has 32 samples in a step" in says
    assert main([*words, "--latency", "100", "--json"]) == 0
    one, two = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one["workers"], one["hosts"], two["hosts"], two["batch"]) == (2, 1, 2, "per-worker")
    assert two["seconds"]["each step"] == pytest.approx(0.11 + 0.1 + 18e-4)
    assert two["samples_per_second"]["each step"] == pytest.approx(
        4 * 32 / two["seconds"]["each step"]
    )
    assert two["efficiency"]["each step"] == pytest.approx(0.1 / two["seconds"]["each step"])


def forecast_of(
    run_dir: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> list[dict[str, Any]]:
    assert main(["forecast", str(run_dir), *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def beside_one_worker(tmp_path: Path, alone: float) -> Path:
    """A run of two workers with a step of 0.11 s, and one of one worker whose steps take ``alone`` s."""
    run, one = tmp_path / "two", tmp_path / "one"
    write(run)
    one.mkdir()
    request = {"sha256": "1", "program": {}, "versions": {}, "folder": "/"}
    for folder, workers, step in ((run, 2, 0.11), (one, 1, alone)):
        (folder / "run.json").write_text(json.dumps({**request, "options": {"batch": "global"}}))
        measured = {"workers": workers, "step": step, "samples": 64.0, "backend": None}
        (folder / "speed.json").write_text(json.dumps(measured))
    return run


@pytest.mark.parametrize("alone", [0.105, 0.05])
def test_the_forecast_of_a_run_is_the_speed_that_its_report_names(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    alone: float,
) -> None:
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    run = beside_one_worker(tmp_path, alone)
    measured = speed.find_measured(run)
    assert measured is not None
    assert measured.times == pytest.approx(alone / 0.11)
    two, eight = forecast_of(run, capsys, "-n", "2", "8", "--per-host", "8", "--gbit", "10")
    assert two["batch"] == "global"
    assert two["speed"]["each step"] == pytest.approx(measured.times)
    assert eight["speed"]["each step"] < 1.1  # no 8 × 74 %
    assert main(["forecast", str(run), "-n", "2"]) == 0
    says = " ".join(capsys.readouterr().out.split())
    assert "`--batch global`: the workers divide the 64 samples of a step." in says
    assert "(by one, of one worker)" in says


def test_a_disturbed_run_of_one_worker_is_no_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    run = beside_one_worker(tmp_path, alone=0.66)
    assert forecast_of(run, capsys, "-n", "2")[0]["speed"]["each step"] < 2
    assert main(["forecast", str(run), "-n", "2"]) == 0
    says = " ".join(capsys.readouterr().out.split())
    assert "assuming that all computing does; a run with `-n 1` measures it" in says
