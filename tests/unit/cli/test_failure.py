"""What a person reads at the end of a run that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos.cli.failure import print_failure
from syrtos.launch.outcome import End, Outcome

REPORT = {"rank": 0, "host": "here", "text": "ConnectionError: closed by peer", "code": 1}


def test_a_report_is_not_the_reason_where_another_worker_ended_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_failure(Outcome(End.LOST, 1, 1, 0, unfinished=(0, 1), failures=[REPORT]), tmp_path)
    said = capsys.readouterr().err
    assert "rank 1 ended first: its process ended with exit code 0" in said
    assert "closed by peer" not in said


def test_a_report_is_the_reason_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_failure(Outcome(End.FAILED, 1, 0, failures=[REPORT]), tmp_path)
    assert "closed by peer" in capsys.readouterr().err


def test_an_error_that_all_workers_share_is_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = [{**REPORT, "rank": rank} for rank in (1, 0)]
    workers = {rank: {"rank": rank, "host": "here"} for rank in (0, 1)}
    outcome = Outcome(End.FAILED, 1, 1, unfinished=(0, 1), failures=failures, workers=workers)
    print_failure(outcome, tmp_path)
    said = capsys.readouterr().err
    assert "all workers failed alike:\n\nConnectionError: closed by peer\n" in said
    assert "first" not in said
    assert str(tmp_path / "logs") in said


@pytest.mark.parametrize(
    ("error", "is_of_a_name"),
    [
        ("ImportError: cannot import name 'Merge' from 'keras.layers'", True),
        ("ImportError: /lib/tensorflow/libtensorflow_cc.so.2: failed to map segment", False),
    ],
)
def test_the_names_of_keras_are_named_where_one_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str, is_of_a_name: bool
) -> None:
    text = f"Traceback (most recent call last):\n{error}"
    print_failure(Outcome(End.FAILED, 1, 0, failures=[{**REPORT, "text": text}]), tmp_path)
    assert ("syrtos doctor" in capsys.readouterr().err) == is_of_a_name


def test_the_signal_that_came_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for outcome in (Outcome(End.STOPPED, 143, stopped_by=10), Outcome(End.STOPPED, 138)):
        print_failure(outcome, tmp_path)
        assert "stopped by SIGUSR1 (signal 10)" in capsys.readouterr().err
