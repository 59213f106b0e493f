"""Every second of a step is in its record, once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from syrtos.observe.ledger import KINDS, Ledger, forget, ledger_path


def records(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger_path(folder, rank).read_text().splitlines()]


def test_a_record_adds_up_to_its_wall_time(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path), 0)
    ledger.begin_step()
    for kind in KINDS:
        with ledger.span(kind):
            time.sleep(0.002)
    time.sleep(0.005)
    ledger.end_step(0, "train")
    ledger.close()
    (record,) = records(tmp_path)
    assert sum(record[kind] for kind in (*KINDS, "compute")) == pytest.approx(record["wall"], abs=1e-5)
    assert all(record[kind] >= 0.002 for kind in KINDS)
    assert record["compute"] >= 0.005


def test_a_span_of_one_kind_adds_to_no_other(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path), 0)
    ledger.begin_step()
    ledger.spend("wait", 0.25)
    ledger.spend("wait", 0.5)
    ledger.end_step(0, "train")
    ledger.close()
    (record,) = records(tmp_path)
    assert {kind: record[kind] for kind in KINDS} == dict.fromkeys(KINDS, 0.0) | {"wait": 0.75}
    assert record["compute"] == 0.0  # more was spent beside the step than it took


def test_a_step_starts_from_nothing(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path), 0)
    for step in range(2):
        ledger.begin_step()
        if step == 0:
            ledger.spend("input", 0.5)
            ledger.samples = 32.0
        ledger.end_step(step, "train", steps=4)
    ledger.close()
    first, second = records(tmp_path)
    assert (first["input"], first["samples"], first["steps"], first["step"]) == (0.5, 32.0, 4, 0)
    assert (second["input"], second["samples"], second["steps"], second["step"]) == (0.0, 0.0, 4, 1)


def test_an_error_inside_a_span_is_measured_too() -> None:
    ledger = Ledger()
    ledger.begin_step()
    with pytest.raises(ValueError, match="x"), ledger.span("input"):
        raise ValueError("x")
    ledger.end_step(0, "train")


def test_time_between_steps_is_noted_apart(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path), 2)
    ledger.note("checkpoint", 1.5)
    ledger.close()
    assert records(tmp_path, 2) == [{"phase": "between", "steps": 0, "wall": 1.5, "checkpoint": 1.5}]


def test_nothing_is_lost_over_many_steps(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path), 0)
    for step in range(1000):
        ledger.begin_step()
        ledger.end_step(step, "train")
    ledger.close()
    assert [record["step"] for record in records(tmp_path)] == list(range(1000))


def test_flush_makes_whole_lines_readable_at_once(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path), 0)
    ledger.note("wait", 0.1)
    ledger.flush()
    ledger.flush()
    assert len(records(tmp_path)) == 1
    ledger.close()


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = Ledger()
    ledger.begin_step()
    ledger.end_step(0, "train")
    ledger.close()
    assert list(tmp_path.iterdir()) == []


def test_a_closed_ledger_takes_no_more_and_does_not_mind(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path), 0)
    ledger.close()
    ledger.note("wait", 1.0)
    ledger.close()
    assert records(tmp_path) == []


def test_what_an_earlier_run_left_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    left = [ledger_path(tmp_path, 3), tmp_path / "logs" / "rank-3.log", tmp_path / "logs" / "rank-12.failure"]
    kept = [tmp_path / "model.keras", tmp_path / "logs" / "events.out", tmp_path / "ledger" / "notes.md"]
    for path in (*left, *kept):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    forget(tmp_path)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


def test_a_new_folder_has_nothing_to_forget(tmp_path: Path) -> None:
    forget(tmp_path / "new")
    assert not (tmp_path / "new").exists()
