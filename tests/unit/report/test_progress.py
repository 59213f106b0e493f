"""How far a run is, from the last lines of its files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from syrtos.report.progress import read_progress, silence_worth_a_word

Lines = Sequence[Mapping[str, Any]]


def write(folder: Path, points: Lines = (), ends: Lines = (), steps: Lines = ()) -> None:
    """Writes a generation, as rank 0 and another worker do."""
    ledger = folder / "ledger"
    ledger.mkdir(parents=True, exist_ok=True)
    for name, lines in (
        ("curve", points),
        ("epochs", ends),
        ("rank-0", steps),
        ("rank-1", steps),
    ):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (ledger / f"{name}.jsonl").write_text(text + '{"half a li')


def point(age: float, epoch: int, batch: int, **more: object) -> dict[str, object]:
    """A point of the curves, ``age`` seconds ago, of 5 epochs with 10 steps each."""
    trained = (epoch - 1) * 10 + batch
    of_all = {"fit": 1, "epochs": 5, "steps_per_epoch": 10, "logs": {"loss": 0.40612}}
    return {"time": time.time() - age, "trained": trained, "epoch": epoch, "batch": batch, **of_all} | more  # fmt: skip


def end(age: float, epoch: int, **more: object) -> dict[str, object]:
    """The end of an epoch, ``age`` seconds ago."""
    line = point(age, epoch, 10, step=epoch * 10, **more)
    del line["batch"]
    return line


STEP = {"phase": "train", "steps": 1, "samples": 16.0, "wall": 0.04}


def test_a_run_that_trains(tmp_path: Path) -> None:
    points = [point(13.0 - n, 1 + (n > 10), n - 10 * (n > 10)) for n in (*range(1, 10), 13)]
    others = [{"phase": "script", "wall": 9.0}, {"phase": "test", "samples": 9, "wall": 1.0}]
    write(tmp_path, points, steps=[*others, STEP, STEP])
    found = read_progress(tmp_path)
    assert found.describe_running() == "epoch 2/5, step 3/10, loss 0.4061, 800 samples/s, about 37 s left"  # fmt: skip
    assert found.silent is not None
    assert found.silent < 60


def test_the_time_left_is_that_of_whole_epochs_once_there_are_two(tmp_path: Path) -> None:
    ends = [end(200.0 - 60 * number, number) for number in (1, 2, 3)]
    write(tmp_path, [point(0.1, 4, 5)], ends)
    assert read_progress(tmp_path).describe_running().endswith(", about 2 min left")


def test_the_end_of_an_epoch_is_its_last_step(tmp_path: Path) -> None:
    write(tmp_path, [point(1.0, 5, 9)], [end(0.0, 5, logs={"loss": 2})])
    assert read_progress(tmp_path).describe() == "epoch 5/5, step 10/10, loss 2"


def test_a_later_fit_is_named_and_only_its_epochs_count(tmp_path: Path) -> None:
    ends = [end(900.0, 1), end(500.0, 2)]
    write(tmp_path, [point(2.0, 1, 1, fit=2), point(1.0, 1, 2, fit=2)], ends)
    assert read_progress(tmp_path).describe_running() == "fit 2, epoch 1/5, step 2/10, loss 0.4061, about 48 s left"  # fmt: skip


def test_what_keras_does_not_know_is_not_shown(tmp_path: Path) -> None:
    unknown = {"epochs": None, "steps_per_epoch": None, "logs": {"auc": 1.0}}
    write(tmp_path, [point(1.0, 1, 2, **unknown), point(0.0, 1, 1234, **unknown)])
    assert read_progress(tmp_path).describe_running() == "epoch 1, step 1,234"


def test_generations_are_restarts_and_the_newest_counts(tmp_path: Path) -> None:
    write(tmp_path, [point(50.0, 3, 7)])
    second = tmp_path / "generation-2"
    (second / "logs").mkdir(parents=True)
    says = "no training step yet, 1 restart; the generation before came to epoch 3/5, step 7/10, loss 0.4061"  # fmt: skip
    assert read_progress(tmp_path).describe_running() == says
    assert read_progress(tmp_path).silent is None
    write(second, [point(1.0, 3, 5)])
    (tmp_path / "generation-3").mkdir()
    write(tmp_path / "generation-3", [point(1.0, 3, 6)])
    assert read_progress(tmp_path).describe_running() == "epoch 3/5, step 6/10, loss 0.4061, 2 restarts"  # fmt: skip


def test_a_loop_of_the_scripts_own_has_steps_alone(tmp_path: Path) -> None:
    write(tmp_path)
    assert read_progress(tmp_path).describe_running() == "no training step yet"
    (tmp_path / "ledger" / "usage-0.jsonl").write_text('{"time": 1, "trained": 2048}\n')
    assert read_progress(tmp_path).describe_running() == "step 2,048"
    assert read_progress(tmp_path / "none").describe() == ""


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, [point(1.0, 1, 2), {"tmme": 3}, {**point(0, 1, 3), "epoch": "x"}], steps=[{"samples": 1, "steps": 1}])  # fmt: skip
    assert read_progress(tmp_path).describe_running() == "epoch 1/5, step 2/10, loss 0.4061"


def test_a_step_that_takes_long_is_said(tmp_path: Path) -> None:
    write(tmp_path, [point(121.0, 2, 2), point(120.0, 2, 3)], steps=[STEP])
    says = read_progress(tmp_path).describe_running()
    assert says == "epoch 2/5, step 3/10, loss 0.4061, last step 2 min ago"
    write(tmp_path, [point(240.0, 2, 2), point(120.0, 2, 3)])  # steps of two minutes
    assert "ago" not in read_progress(tmp_path).describe_running()


def test_silence_is_worth_a_word_after_a_minute(tmp_path: Path) -> None:
    write(tmp_path, [point(1.0, 1, 1)])
    began = time.time() - 1000
    assert silence_worth_a_word(read_progress(tmp_path), began) is None
    for path in (tmp_path / "ledger").iterdir():
        os.utime(path, (began, time.time() - 90))
    assert silence_worth_a_word(read_progress(tmp_path), began) == pytest.approx(90, abs=5)
    # it has begun just now, and the files are of a run before
    assert silence_worth_a_word(read_progress(tmp_path), time.time() - 5) is None
    assert silence_worth_a_word(read_progress(tmp_path / "none"), began) == pytest.approx(1000, abs=5)  # fmt: skip


def test_a_long_run_is_read_at_its_end(tmp_path: Path) -> None:
    write(tmp_path, [point(3000 - n, 1, n, steps_per_epoch=3000) for n in range(1, 3000)])
    assert "step 2,999/3,000" in read_progress(tmp_path).describe()
