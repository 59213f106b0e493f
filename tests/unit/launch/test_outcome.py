"""From what the launcher saw to how the run ended."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from syrtos.launch.outcome import End, Facts, Outcome, judge

WORKERS = {rank: {"rank": rank, "host": "a", "machine": "m", "pid": 100 + rank} for rank in range(3)}
APART = {rank: {**worker, "machine": f"m{rank}"} for rank, worker in WORKERS.items()}


def judged(**facts: Any) -> Outcome:
    return judge(Facts(**{"processes": 3, "workers": WORKERS, **facts}))


def codes(*statuses: int) -> list[str]:
    """What hydra prints of wait statuses."""
    return [f"[mpiexec@a] Exit codes: [a] {','.join(map(str, statuses))}"]


def test_all_have_said_so() -> None:
    assert judged(finished={0, 1, 2}, gone=[2, 0, 1]).end is End.FINISHED


def test_a_launcher_without_workers_is_judged_by_its_exit_code() -> None:
    assert judge(Facts()) == Outcome()
    assert judge(Facts(returncode=3)).code == 3
    assert judge(Facts(returncode=-9)).code == 137


def test_an_exit_code_of_0_is_no_end() -> None:
    outcome = judged(gone=[1, 0, 2], noise=codes(0, 0, 0))
    assert (outcome.end, outcome.rank, outcome.status, outcome.code) == (End.LOST, 1, 0, 1)
    assert "rank 1 on a ended first: its process (number 101) ended with exit code 0 before its script" in str(outcome)


@pytest.mark.parametrize("finished", [set[int](), {0, 2}])
def test_the_one_that_said_nothing_is_named_though_others_went_before(finished: set[int]) -> None:
    outcome = judged(finished=finished, gone=[0, 1, 2] if finished else [1])
    assert (outcome.end, outcome.rank) == (End.LOST, 1)


def test_who_has_called_exit_is_known_on_all_hosts() -> None:
    outcome = judged(workers=APART, fatal=(2, 0), gone=[0], noise=codes(9, 768, 0))
    assert (outcome.end, outcome.rank, outcome.status, outcome.code) == (End.LOST, 2, 0, 1)


def test_ranks_of_hosts_that_were_not_seen_are_all_named() -> None:
    outcome = judged(workers=APART, finished={0}, noise=codes(0, 0, 0))
    assert (outcome.end, outcome.rank, outcome.code) == (End.LOST, None, 1)
    assert str(outcome).startswith("one of the ranks 1, 2 ended with exit code 0 before its script")


@pytest.mark.parametrize(
    ("noise", "rank", "status"),
    [
        (codes(9, 768, 0), 1, 3),
        (codes(15, 9, 134), 2, -6),
        (codes(9, 11, 9), 1, -11),
        (codes(0, 15, 0), 1, -15),
    ],
)
def test_on_other_hosts_the_first_is_known_by_how_it_ended(noise: list[str], rank: int, status: int) -> None:
    outcome = judged(workers=APART, gone=[0], noise=noise, returncode=9)
    assert (outcome.rank, outcome.status) == (rank, status)
    assert outcome.end is (End.LOST if status > 0 else End.CRASHED)
    assert outcome.code == (status if status > 0 else 128 - status)


def test_who_was_seen_to_go_first_counts_more_than_what_the_others_made_of_it() -> None:
    outcome = judged(gone=[1, 0, 2], noise=codes(256, 9, 0), returncode=9)
    assert (outcome.rank, outcome.status, outcome.code) == (1, -9, 137)


def test_a_crash_of_its_own_counts_more_than_who_was_seen_to_go_first() -> None:
    """Large processes take a while to end, and what MPI's launcher kills may be gone before them."""
    assert judged(gone=[0, 1, 2], noise=codes(9, 11, 9), returncode=11).rank == 1


def test_a_worker_that_was_terminated_may_be_gone_after_the_others() -> None:
    assert judged(gone=[0, 2, 1], noise=codes(0, 15, 0), returncode=15).rank == 1
    assert judged(gone=[1, 0, 2], noise=codes(0, 0, 9)).rank == 1


def test_the_signal_is_named() -> None:
    outcome = judged(gone=[1, 0, 2], noise=codes(9, 134, 9), returncode=6)
    assert (outcome.end, outcome.code) == (End.CRASHED, 134)
    assert str(outcome) == "rank 1 on a ended first: its process (number 101) was ended by SIGABRT (signal 6)."


def test_hosts_write_a_line_each() -> None:
    noise = [*codes(9, 0), "[b] 768"]
    assert judged(workers=APART, noise=noise, returncode=3).rank == 2


def test_the_banner_says_it_where_no_list_does() -> None:
    noise = ["YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Aborted (signal 6)"]
    assert judged(workers=APART, noise=noise, returncode=6).code == 128 + signal.SIGABRT


def test_the_banner_names_a_worker_that_was_alone_on_its_host() -> None:
    noise = ["=   PID 101 RUNNING AT b", "=   EXIT CODE: 9", "=   CLEANING UP REMAINING PROCESSES"]
    alone = judged(workers=APART, gone=[0], noise=noise, returncode=255)
    assert (alone.end, alone.rank, alone.status, alone.code) == (End.CRASHED, 1, -9, 137)
    workers = {**APART, 2: {**APART[2], "machine": "m1"}}
    shared = judged(workers=workers, gone=[0], noise=noise, returncode=255)
    assert (shared.end, shared.rank, shared.code) == (End.CRASHED, None, 137)


def test_a_list_without_the_codes_of_a_host_is_not_taken_for_one_of_the_first_ranks() -> None:
    noise = ["=   PID 101 RUNNING AT b", "=   EXIT CODE: 9", *codes(9)]
    outcome = judged(workers=APART, gone=[0], noise=noise, returncode=9)
    assert (outcome.rank, outcome.status) == (1, -9)


def test_the_banner_names_the_worker_where_the_signal_stands_in_another_line() -> None:
    """Seen when the first host's launcher had lost its connection before its list."""
    noise = [
        "=   PID 101 RUNNING AT b",
        "=   EXIT CODE: 9",
        *codes(9),
        "YOUR APPLICATION ... EXIT STRING: Killed (signal 9)",
    ]
    outcome = judged(workers=APART, gone=[0], noise=noise, returncode=9)
    assert (outcome.rank, outcome.status) == (1, -9)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_only_a_signal_to_the_launcher_is_a_stop(number: signal.Signals) -> None:
    stopped = judged(stopped_by=number, returncode=9)
    crashed = judged(gone=[1], noise=codes(0, number, 0), returncode=number)
    assert (stopped.end, stopped.code) == (End.STOPPED, 128 + number)
    assert (crashed.end, crashed.rank, crashed.code) == (End.CRASHED, 1, 128 + number)


def test_a_script_that_was_interrupted_by_itself_is_no_stop() -> None:
    outcome = judged(interrupted=[2], returncode=130)
    assert (outcome.end, outcome.rank, outcome.code) == (End.CRASHED, 2, 130)


def test_an_end_before_all_reports_is_the_reason_for_them() -> None:
    """The others saw a broken connection, and said so before they were ended."""
    outcome = judged(fatal=(1, -9), failures=[{"rank": 0, "text": "ConnectionError", "code": 1}])
    assert (outcome.end, outcome.rank, outcome.code) == (End.CRASHED, 1, 137)


def test_a_program_that_is_no_worker_has_not_started() -> None:
    outcome = judged(workers={}, fatal=(1, 4), returncode=4)
    assert (outcome.end, outcome.code) == (End.NOT_STARTED, 4)


def test_the_first_report_counts() -> None:
    failures = [{"rank": 2, "text": "x", "code": 0}, {"rank": 0, "text": "y", "code": 5}]
    outcome = judged(failures=failures, gone=[0], returncode=5)
    assert (outcome.end, outcome.rank, outcome.code) == (End.FAILED, 2, 1)


def test_nobody_has_started() -> None:
    assert judged(workers={}, returncode=255).end is End.NOT_STARTED
    assert judged(workers={}, noise=codes(256, 256, 256)).code == 1


def test_a_crash_after_the_end_is_one() -> None:
    outcome = judged(finished={0, 1, 2}, noise=codes(0, 0, 11), returncode=11)
    assert (outcome.end, outcome.rank, outcome.code) == (End.CRASHED, 2, 139)
    late = judged(finished={0, 1, 2}, noise=codes(0, 512, 0), returncode=2)
    assert str(late).endswith("ended with exit code 2, after its script had come to its end.")


def test_over_servers_rank_0_decides() -> None:
    spared = frozenset({1})
    assert judged(spared=spared, finished={0}, lost={1: 0}, returncode=1).end is End.FINISHED
    outcome = judged(spared=spared, fatal=(0, 0), lost={1: -9}, returncode=9)
    assert (outcome.end, outcome.rank, outcome.code) == (End.LOST, 0, 1)
    assert judged(spared=spared, lost={1: -9}, gone=[1, 2, 0], returncode=9).rank == 2


def test_the_worker_that_hangs_is_named_and_not_the_one_that_reports_it() -> None:
    report = {"rank": 0, "host": "a", "text": "syrtos.errors.StalledError: rank 0 has waited 300 s", "code": 1}
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
    outcome = judged(hung={1: "stopped"}, returncode=137)
    assert (outcome.end, outcome.rank, outcome.code) == (End.HUNG, 1, 1)
    assert (
        judged(hung={1: "stopped"}, finished={0, 1, 2}).end is End.FINISHED
    )  # the script has caught the error, and gone on
