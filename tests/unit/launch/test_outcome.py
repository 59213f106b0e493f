"""From what the launcher saw to how the run ended."""

from __future__ import annotations

import signal
import traceback
from typing import Any

import pytest

from syrtos.launch.outcome import End, Facts, Outcome, error_line, judge
from syrtos.launch.process_engine import ProcessEnd

WORKERS = {rank: {"rank": rank, "host": "a", "pid": 100 + rank} for rank in range(3)}


def judged(**facts: Any) -> Outcome:
    return judge(Facts(**{"processes": 3, "workers": WORKERS, **facts}))


def test_all_have_said_so() -> None:
    assert judged(finished={0, 1, 2}).end is End.FINISHED


def test_an_exit_code_of_0_is_no_end() -> None:
    outcome = judged(fatal=ProcessEnd(1, 0), finished={0})
    assert (outcome.end, outcome.rank, outcome.status, outcome.code) == (End.LOST, 1, 0, 1)
    assert (
        "rank 1 on a ended first: its process (number 101) ended with exit code 0 before its script"
        in str(outcome)
    )


@pytest.mark.parametrize(
    ("status", "end", "code"),
    [(3, End.LOST, 3), (-6, End.CRASHED, 134), (-9, End.CRASHED, 137), (256, End.LOST, 1)],
)
def test_the_first_end_is_the_runs(status: int, end: End, code: int) -> None:
    outcome = judged(fatal=ProcessEnd(2, status))
    assert (outcome.end, outcome.rank, outcome.status, outcome.code) == (end, 2, status, code)


def test_the_signal_is_named() -> None:
    text = str(judged(fatal=ProcessEnd(1, -6)))
    assert (
        text == "rank 1 on a ended first: its process (number 101) was ended by SIGABRT (signal 6)."
    )


def test_a_host_that_is_lost_is_the_reason() -> None:
    outcome = judged(fatal=ProcessEnd(1, None, "was on b, which has not been heard of for 10 s"))
    assert (outcome.end, outcome.rank, outcome.status, outcome.code) == (End.LOST, 1, None, 1)
    assert str(outcome).endswith(
        "its process (number 101) was on b, which has not been heard of for 10 s."
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_only_a_signal_to_the_launcher_is_a_stop(number: signal.Signals) -> None:
    stopped = judged(stopped_by=number)
    crashed = judged(fatal=ProcessEnd(1, -number))
    assert (stopped.end, stopped.code) == (End.STOPPED, 128 + number)
    assert (crashed.end, crashed.rank, crashed.code) == (End.CRASHED, 1, 128 + number)


def test_a_script_that_was_interrupted_by_itself_is_no_stop() -> None:
    outcome = judged(interrupted=[2])
    assert (outcome.end, outcome.rank, outcome.code) == (End.CRASHED, 2, 130)


def test_an_end_before_all_reports_is_the_reason_for_them() -> None:
    """The others saw a broken connection, and said so before they were ended."""
    outcome = judged(
        fatal=ProcessEnd(1, -9), failures=[{"rank": 0, "text": "ConnectionError", "code": 1}]
    )
    assert (outcome.end, outcome.rank, outcome.code) == (End.CRASHED, 1, 137)


def test_a_program_that_is_no_worker_has_not_started() -> None:
    outcome = judged(workers={}, fatal=ProcessEnd(1, 4))
    assert (outcome.end, outcome.code) == (End.NOT_STARTED, 4)
    assert (
        judged(workers={}, fatal=ProcessEnd(1, None, "could not be started")).why
        == "could not be started"
    )


def test_the_first_report_counts() -> None:
    failures = [{"rank": 2, "text": "x", "code": 0}, {"rank": 0, "text": "y", "code": 5}]
    outcome = judged(failures=failures)
    assert (outcome.end, outcome.rank, outcome.code) == (End.FAILED, 2, 1)


def test_ranks_that_said_nothing_are_no_success() -> None:
    assert (judged(finished={0, 2}).end, judged(finished={0, 2}).rank) == (End.LOST, 1)
    several = judged(finished={0})
    assert (several.end, several.rank, several.code) == (End.LOST, None, 1)
    assert str(several).startswith("one of the ranks 1, 2 ended before its script")


def test_a_crash_after_the_end_is_one() -> None:
    outcome = judged(finished={0, 1, 2}, fatal=ProcessEnd(2, -11))
    assert (outcome.end, outcome.rank, outcome.code) == (End.CRASHED, 2, 139)
    late = judged(finished={0, 1, 2}, fatal=ProcessEnd(1, 2))
    assert str(late).endswith("ended with exit code 2, after its script had come to its end.")


def test_over_servers_rank_0_decides() -> None:
    spared = frozenset({1})
    assert judged(spared=spared, finished={0}, lost={1: ProcessEnd(1, 0)}).end is End.FINISHED
    outcome = judged(spared=spared, fatal=ProcessEnd(0, 0), lost={1: ProcessEnd(1, -9)})
    assert (outcome.end, outcome.rank, outcome.code) == (End.LOST, 0, 1)


def test_the_worker_that_hangs_is_named_and_not_the_one_that_reports_it() -> None:
    report = {
        "rank": 0,
        "host": "a",
        "text": "syrtos.errors.StalledError: rank 0 has waited 300 s",
        "code": 1,
    }
    outcome = judged(failures=[report], hung={1: "stopped"})
    assert (outcome.end, outcome.rank, outcome.code) == (End.HUNG, 1, 1)
    assert str(outcome).startswith(
        "rank 1 on a (number 101) did not come to an exchange, and others waited for it: it is stopped"
    )
    several = str(judged(failures=[report], hung={1: "busy", 2: "stopped"}))
    assert several.startswith(
        "others waited for these, which did not come to an exchange: rank 1 on a (number 101): it is busy; rank 2"
    )
    assert several.endswith("it is stopped.")


def test_an_error_of_a_worker_that_was_waited_for_is_no_hang() -> None:
    report = {"rank": 1, "host": "a", "text": "ValueError: late", "code": 1}
    assert judged(failures=[report], hung={1: "busy"}).end is End.FAILED


def test_a_worker_that_hangs_and_one_that_only_did() -> None:
    outcome = judged(hung={1: "stopped"})
    assert (outcome.end, outcome.rank, outcome.code) == (End.HUNG, 1, 1)
    assert (
        judged(hung={1: "stopped"}, finished={0, 1, 2}).end is End.FINISHED
    )  # the script has caught the error, and gone on


def test_workers_that_were_replaced() -> None:
    outcome = judged(replaced="There are slots for 4 workers now, and 2 trained.", finished=set())
    assert (outcome.end, str(outcome)) == (
        End.REPLACED,
        "There are slots for 4 workers now, and 2 trained.",
    )


def test_an_error_that_all_workers_share() -> None:
    failures = [{"rank": rank, "text": f"OSError: rank {rank} at 0x{rank}f"} for rank in (1, 0, 2)]
    assert judged(failures=failures).failed_alike
    assert judged(failures=failures).sentence().startswith("all workers failed alike: OSError:")
    assert not judged(failures=failures[:2]).failed_alike, "rank 2 has said nothing"
    assert not judged(failures=failures[:2], finished={2}).failed_alike, "rank 2 has finished"
    other = {"rank": 2, "text": "ConnectionError: closed"}
    assert not judged(failures=[*failures[:2], other]).failed_alike
    alone = judged(processes=1, workers={0: {}}, failures=[{"rank": 0, "text": "x"}])
    assert not alone.failed_alike


@pytest.mark.parametrize(("status", "code"), [(256, 1), (257, 1), (3, 3), (0, 1), (-1, 255)])
def test_the_code_of_a_failed_run_is_never_0(status: int, code: int) -> None:
    """A kernel passes on eight bits."""
    failure = {"rank": 1, "text": "it failed", "code": status}
    outcome = judged(failures=[failure])
    assert (outcome.end, outcome.code) == (End.FAILED, code)


def text_of(error: Exception) -> str:
    try:
        raise error
    except Exception:
        return traceback.format_exc()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("few rows."), "ValueError: few rows"),
        (RuntimeError("boom\nsecond line"), "RuntimeError: boom"),
        (KeyError(), "KeyError"),
        (
            ExceptionGroup("many", [ValueError("a"), TypeError("b")]),
            "ExceptionGroup: many (2 sub-exceptions)",
        ),
        (
            RuntimeError(
                "Graph execution error:\n\nDetected at node Cast defined at (most recent call last):\n"
                '  File "train.py", line 3, in <module>\n\nindices[0] = 9 is not in [0, 5)\n'
                "\t [[{{node Cast}}]]"
            ),
            "indices[0] = 9 is not in [0, 5)",
        ),
        (RuntimeError("Graph execution error:\n\nno room"), "no room"),
    ],
)
def test_the_line_that_tells_an_error(error: Exception, line: str) -> None:
    assert error_line(text_of(error)) == line
