"""When workers are started again."""

from __future__ import annotations

import pytest

from syrtos.launch.outcome import End, Outcome
from syrtos.launch.policy import Attempt, Decision, RestartPolicy, decide


def after(*reached: int, end: End = End.CRASHED, restarts: int = 9) -> Decision:
    return decide(RestartPolicy(restarts), [Attempt(Outcome(end, 1), number) for number in reached])


@pytest.mark.parametrize("end", [End.CRASHED, End.LOST, End.FAILED, End.HUNG])
def test_after_a_worker_was_lost_or_failed(end: End) -> None:
    assert after(5, end=end) == Decision(True)


def test_workers_that_could_not_be_started_are_tried_again_where_something_would_be_lost() -> None:
    """A host of a run that is resumed, or was lost just now, does not answer: the next generation does without."""
    refused = Outcome(End.NOT_STARTED, 1, rank=0)
    assert decide(RestartPolicy(9), [Attempt(refused, 5)]).again
    assert not decide(RestartPolicy(9), [Attempt(refused, 0)]).again


def test_too_few_hosts_have_been_waited_for() -> None:
    outcome = Outcome(End.NOT_STARTED, 1, why="no host answers")
    assert decide(RestartPolicy(9), [Attempt(outcome, 5)]) == Decision(False, "no host answers")


@pytest.mark.parametrize("end", [End.FINISHED, End.STOPPED])
def test_never_after_these_ends(end: End) -> None:
    assert not after(5, end=end).again


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            "DivergenceError: The replicas have diverged",
            "the replicas had diverged, and so have their snapshots",
        ),
        (
            "NonFiniteError: Update 7 was not made",
            "the same batch would give the same gradient again",
        ),
    ],
)
def test_what_would_come_again_is_no_reason_to_restart(error: str, reason: str) -> None:
    failure = {"text": f"syrtos.errors.{error}"}
    decision = decide(RestartPolicy(9), [Attempt(Outcome(End.FAILED, 1, failures=[failure]), 7)])
    assert decision == Decision(False, reason)


def test_a_generation_that_is_replaced_is_no_failure() -> None:
    attempts = [Attempt(Outcome(End.REPLACED, 1), 4)] * 5
    assert decide(RestartPolicy(0), attempts) == Decision(True)
    assert decide(RestartPolicy(1), [*attempts, Attempt(Outcome(End.CRASHED, 1), 4)]).again


def test_restarts_that_nobody_has_asked_for_are_of_lost_workers_with_a_snapshot() -> None:
    def again(end: End, reached: int, status: int | None = None) -> bool:
        return decide(
            RestartPolicy(3, asked=False), [Attempt(Outcome(end, 1, status=status), reached)]
        ).again

    assert again(End.CRASHED, 5, -9)
    assert again(End.HUNG, 5)
    assert again(End.LOST, 5, 0)
    assert again(End.LOST, 5)
    assert not again(End.LOST, 5, 3)
    assert not again(End.CRASHED, 0, -9)
    assert not again(End.FAILED, 5)


def test_replicas_that_differ_are_repaired_where_that_is_asked() -> None:
    failure = {"text": "syrtos.errors.DivergenceError: The replicas have diverged"}
    attempt = Attempt(Outcome(End.FAILED, 1, failures=[failure]), 7)
    assert decide(RestartPolicy(3, asked=False, repair=True), [attempt]).again
    assert not decide(RestartPolicy(3, asked=False), [attempt]).again


def test_no_more_often_than_allowed() -> None:
    assert after(1, 2, restarts=2).again
    decision = after(1, 2, 3, restarts=2)
    assert not decision.again
    assert decision.reason == "2 restarts were allowed, and have been made"
    assert after(1, restarts=0) == Decision(False)


def test_three_times_at_the_same_place_is_enough() -> None:
    assert after(7).wait == 0.0
    assert after(7, 7).wait == 2.0
    assert not after(7, 7, 7).again
    assert after(7, 7, 8, 8).again
    assert "3 generations have ended at the same place" in after(1, 7, 7, 7).reason


def test_the_same_error_at_the_same_place_ends_the_run_after_two() -> None:
    def attempts(*errors: str, reached: tuple[int, ...] = (7, 7)) -> list[Attempt]:
        ends = [
            Outcome(End.FAILED, 1, rank=1, failures=[{"text": f"Traceback\n{error}\n"}])
            for error in errors
        ]
        return [Attempt(end, number) for end, number in zip(ends, reached, strict=True)]

    decision = decide(RestartPolicy(9), attempts("ValueError: x", "ValueError: x"))
    assert not decision.again
    assert (
        "2 generations have ended by the same error at the same place (ValueError: x)"
        in decision.reason
    )
    assert decide(RestartPolicy(9), attempts("ValueError: x", "ConnectionError: y")).again
    assert decide(
        RestartPolicy(9), attempts("ValueError: x", "ValueError: x", reached=(7, 9))
    ).again
    assert decide(
        RestartPolicy(9), attempts("ValueError: x", "ValueError: x", reached=(0, 0))
    ).again  # who knows where
    assert decide(RestartPolicy(9), attempts("ConnectionError: x", "ConnectionError: x")).again
    graph = " [[{{node a}}]] [Op:__inference_1]"
    assert decide(
        RestartPolicy(9), attempts(f"ValueError: x\n{graph}", f"ValueError: y\n{graph}")
    ).again
    assert "3 generations have ended before any step was committed" in after(0, 0, 0).reason
