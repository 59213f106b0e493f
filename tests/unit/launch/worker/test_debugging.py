"""Questions for a debugger, and what a worker answers that has none."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from syrtos.launch.worker import debugging


def test_a_worker_without_a_debugger_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "debugpy", None)
    monkeypatch.setattr(debugging, "LOOK", 0.01)
    unlimited = threading.Event()
    debugging.watch(tmp_path, 1, unlimited.set)
    answer = debugging.ask(tmp_path, 1, 10, lambda: True)
    assert "pip install debugpy" in str(answer["error"])
    assert unlimited.is_set()


def test_an_error_is_not_the_answer_to_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debugging, "LOOK", 0.01)
    answers = iter([{"error": "debugpy is missing"}, {"port": 1}])
    monkeypatch.setattr(debugging, "_listen", lambda: next(answers))
    debugging.watch(tmp_path, 0, lambda: None)
    assert debugging.ask(tmp_path, 0, 10, lambda: True) == {"error": "debugpy is missing"}
    assert debugging.ask(tmp_path, 0, 10, lambda: True) == {"port": 1}
    assert debugging.ask(tmp_path, 0, 10, lambda: True) == {"port": 1}


def test_what_an_earlier_run_in_the_folder_was_asked_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debugging, "LOOK", 0.01)
    (tmp_path / "attach").mkdir()
    (tmp_path / "attach" / "rank-0").touch()
    unlimited = threading.Event()
    debugging.watch(tmp_path, 0, unlimited.set)
    assert not unlimited.wait(0.2)


def test_nobody_answers(tmp_path: Path) -> None:
    assert debugging.ask(tmp_path, 0, 0.01, lambda: True) == {}


def test_workers_that_are_not_asked_wait_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debugging, "LOOK", 0.01)
    unlimited = threading.Event()
    debugging.watch(tmp_path, 0, unlimited.set)
    assert not unlimited.wait(0.1)
    debugging.ask(tmp_path, 1, 1, lambda: True)
    assert unlimited.wait(10)
