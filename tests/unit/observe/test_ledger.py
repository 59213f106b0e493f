"""Every second of a worker's life is in a line of its ledger, once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from syrtos.observe.clock import KINDS, Clock
from syrtos.observe.ledger import Ledger, forget, launching
from syrtos.observe.unrecorded import Unrecorded
from syrtos.run_dir import RunDir


class Run:
    """A ledger that goes by a clock of the test's own."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder, self.rank, self.now = folder, rank, 0.0
        self.ledger = Ledger(Clock(0.0, lambda: self.now))
        self.ledger.open(str(folder), rank)
        self.ledger.script_begins()

    def work(self, seconds: float) -> None:
        self.now += seconds

    def step(self, phase: Any = "train", wall: float = 1.0, steps: int = 1) -> None:
        self.ledger.begin_step(phase)
        self.work(wall)
        self.ledger.count(8.0)
        self.ledger.end_step(0, steps)

    def lines(self) -> list[dict[str, Any]]:
        found = [
            json.loads(line)
            for line in RunDir(self.folder).ledger(self.rank).read_text().splitlines()
        ]
        return [line for line in found if line["phase"] != "facts"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_lines_add_up_to_the_time(run: Run) -> None:
    ledger = run.ledger
    run.work(2.0)
    with ledger.part("fit", "build"):
        run.work(3.0)
        for _ in range(3):
            run.step(wall=0.25)
            run.work(0.0625)
        with ledger.part("test"):
            run.work(0.5)
            run.step("test", wall=1.5)
        ledger.become("callbacks")
        run.work(7.0)
        with ledger.span("checkpoint"):
            run.work(1.0)
        ledger.flush()
    run.work(4.0)
    ledger.close()
    lines = run.lines()
    assert sum(line["wall"] for line in lines) == pytest.approx(run.now)
    for line in lines:
        assert sum(line.get(kind, 0.0) for kind in KINDS) == pytest.approx(line["wall"], abs=1e-5)
    assert sum(line.get("callbacks", 0.0) for line in lines) == 7.0
    assert sum(line["wall"] for line in lines if line["phase"] == "test") == 2.0
    assert sum(line["wall"] for line in lines if line["phase"] == "script") == 6.0


def test_a_step_has_its_kinds_steps_and_samples(run: Run) -> None:
    with run.ledger.part("fit"):
        run.ledger.begin_step("train", "callbacks")
        run.work(0.5)
        run.ledger.become("compute")
        run.work(2.0)
        run.ledger.spend("exchange", 0.75)
        run.ledger.count(16.0)
        run.ledger.end_step(7, steps=4)
    assert run.lines() == [
        {"phase": "train", "step": 7, "steps": 4, "in_fit": True, "samples": 16.0, "wall": 2.5,
         "callbacks": 0.5, "exchange": 0.75, "compute": 1.25},
    ]  # fmt: skip


def test_only_what_is_inside_of_fit_says_so(run: Run) -> None:
    with run.ledger.part("test"):
        run.step("test")
    with run.ledger.part("fit"):
        run.work(1.0)
        with run.ledger.part("test"):
            run.work(1.0)
            run.ledger.flush()
    run.work(1.0)
    run.ledger.close()
    assert [(line["phase"], line.get("in_fit", False)) for line in run.lines()] == [
        ("test", False), ("fit", False), ("test", True), ("script", False),
    ]  # fmt: skip


def test_a_step_without_data_was_none(run: Run) -> None:
    with run.ledger.part("fit"):
        run.step()
        run.ledger.begin_step("train")
        run.work(0.5)
        run.ledger.drop_step()
        run.work(0.25)
    steps = [line for line in run.lines() if "steps" in line]
    rest = [line for line in run.lines() if "steps" not in line]
    assert len(steps) == 1
    assert (rest[0]["phase"], rest[0]["wall"], rest[0]["compute"]) == ("fit", 0.75, 0.5)


def test_an_evaluation_inside_a_callback_of_a_step_is_no_part_of_the_step(run: Run) -> None:
    with run.ledger.part("fit"):
        run.ledger.begin_step("train")
        run.work(1.0)
        with run.ledger.part("test"):
            run.step("test", wall=5.0)
        run.work(1.0)
        run.ledger.end_step(0)
    assert [(line["phase"], line["wall"]) for line in run.lines()] == [
        ("test", 5.0),
        ("train", 2.0),
    ]


def test_an_error_in_fit_loses_no_time(run: Run) -> None:
    with contextlib.suppress(ValueError), run.ledger.part("fit"):
        run.ledger.begin_step("train")
        run.work(1.0)
        raise ValueError
    run.work(2.0)
    run.ledger.close()
    assert [(line["phase"], line["wall"]) for line in run.lines()] == [
        ("fit", 1.0),
        ("script", 2.0),
    ]


def test_updates_of_a_loop_of_the_scripts_own_are_steps(run: Run) -> None:
    run.work(10.0)
    for _ in range(2):
        run.ledger.before_update()
        with run.ledger.span("compute"):
            run.work(1.0)
        run.ledger.note_update()
        run.work(0.5)
    run.ledger.close()
    assert [(line["phase"], line.get("steps"), line["wall"]) for line in run.lines()] == [
        ("script", None, 10.0), ("loop", 1, 1.0), ("loop", 1, 1.5), ("script", None, 0.5),
    ]  # fmt: skip


def test_time_outside_of_steps_is_written_before_the_next_if_it_is_long(run: Run) -> None:
    with run.ledger.part("fit"):
        run.work(0.05)
        run.ledger.begin_step("train")
        assert run.lines() == []
        run.ledger.drop_step()
        run.work(3.0)
        run.ledger.begin_step("train")
        assert [line["wall"] for line in run.lines()] == [3.05]


def test_epochs_are_written_by_rank_0_alone(tmp_path: Path) -> None:
    for rank in (0, 1):
        Run(tmp_path, rank).ledger.epoch(epoch=1, logs={"loss": 0.5})
    (line,) = RunDir(tmp_path).epochs.read_text().splitlines()
    assert json.loads(line)["logs"] == {"loss": 0.5}


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = Ledger()
    with ledger.part("fit"):
        ledger.begin_step("train")
        ledger.end_step(0)
    ledger.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_counted_before_it_was_opened_is_written(tmp_path: Path) -> None:
    now = [5.0]
    ledger = Ledger(Clock(1.0, lambda: now[0]))
    now[0] += 2.0
    ledger.open(str(tmp_path), 0)
    ledger.close()
    last = json.loads(RunDir(tmp_path).ledger(0).read_text().splitlines()[-1])
    assert last == {"phase": "script", "wall": 3.0, "start": 3.0}


def test_a_closed_ledger_takes_no_more_and_does_not_mind(run: Run) -> None:
    run.ledger.close()
    before = run.lines()
    run.step()
    run.ledger.close()
    assert run.lines() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_record_and_not_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = RunDir(tmp_path).ledger(0)
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    run = Run(tmp_path)
    run.step()
    run.step()
    run.ledger.close()
    assert capsys.readouterr().err.count("the record of this run ends here") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_at_the_end_of_the_record_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = RunDir(tmp_path).ledger(0)
    path.parent.mkdir()
    run = Run(tmp_path)
    run.step()
    with open("/dev/full", "wb", buffering=0) as full:
        run.ledger._file = full
        run.ledger.add("callbacks", "Mine", 1.0)
        run.ledger.close()
    assert capsys.readouterr().err.count("the record of this run ends here") == 1


def test_a_record_that_can_not_be_begun_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ledger").touch()
    run = Run(tmp_path)
    run.step()
    run.ledger.close()
    assert capsys.readouterr().err.count("the record of this run ends here") == 1


def test_what_a_launcher_can_not_write_is_noted_once(tmp_path: Path) -> None:
    (tmp_path / "ledger").touch()
    unrecorded = Unrecorded()
    assert unrecorded.sentence() == ""
    with launching(tmp_path, 12.0, unrecorded) as facts:
        facts["end"] = "FINISHED"
    path = tmp_path / "ledger" / "launcher.json"
    assert unrecorded.sentence() == (
        f"This could not be recorded, and the run went on without: {path} (File exists)."
    )


KILLED = """
import os, signal, sys, time
from syrtos.observe.ledger import Ledger
from syrtos.observe.unrecorded import Unrecorded
ledger = Ledger()
ledger.open(sys.argv[1], 0)
ledger.script_begins()
with ledger.part("fit"):
    for step in range(50):
        ledger.begin_step("train")
        ledger.end_step(step)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_is_killed_loses_no_step(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], check=False, env=dict(os.environ)
    )
    assert done.returncode == -signal.SIGKILL
    lines = [json.loads(line) for line in RunDir(tmp_path).ledger(0).read_text().splitlines()]
    assert [line["step"] for line in lines if line["phase"] == "train"] == list(range(50))


def test_the_launcher_says_when_a_run_began_and_ended(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), launching(tmp_path, began=12.0):
        raise KeyboardInterrupt
    said = json.loads(RunDir(tmp_path).launcher.read_text())
    assert said["began"] == 12.0
    assert said["ended"] > 12.0


def test_what_an_earlier_run_left_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    left = [
        RunDir(tmp_path).ledger(3),
        RunDir(tmp_path).launcher,
        tmp_path / "logs" / "rank-3.log",
        tmp_path / "logs" / "rank-12.failure",
    ]
    kept = [
        tmp_path / "model.keras",
        tmp_path / "logs" / "events.out",
        tmp_path / "ledger" / "notes.md",
    ]
    for path in (*left, *kept):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    forget(tmp_path)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


def test_a_new_folder_has_nothing_to_forget(tmp_path: Path) -> None:
    forget(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_last_point_of_the_curves_is_recorded_at_the_end(run: Run) -> None:
    for batch in range(3):
        run.ledger.point(lambda batch=batch: {"batch": batch})
    run.ledger.close()
    points = [json.loads(line) for line in RunDir(run.folder).curve.read_text().splitlines()]
    assert [point["batch"] for point in points] == [0, 2]


def test_the_end_of_an_epoch_stands_for_its_last_point(run: Run) -> None:
    for batch in range(3):
        run.ledger.point(lambda batch=batch: {"batch": batch})
    run.ledger.epoch(epoch=1)
    run.ledger.close()
    assert len(RunDir(run.folder).curve.read_text().splitlines()) == 1
