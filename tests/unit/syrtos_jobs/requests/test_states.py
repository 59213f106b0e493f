"""The life of a job: no gaps, no way back from its end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError
from syrtos_jobs.requests import states
from syrtos_jobs.requests.states import FINAL, MESSAGES, JobState

ALL = sorted(MESSAGES)


def allowed(state: JobState) -> list[str]:
    return [name for name in ALL if can(state, name)]


def can(state: JobState, name: str) -> bool:
    try:
        state.with_transition(name, 0.0)
    except ConfigurationError:
        return False
    return True


@given(st.data())
def test_any_walk_is_without_gaps_and_ends_once(data: st.DataObject) -> None:
    now = 100.0
    state = states.initial_state(now)
    for _ in range(data.draw(st.integers(0, 20))):
        choices = allowed(state)
        if not choices:
            break
        now += data.draw(st.floats(0, 1000))
        before = state
        state = state.with_transition(data.draw(st.sampled_from(choices)), now)
        assert state.transitions[:-2] == before.transitions[:-1]
    for first, second in zip(state.transitions, state.transitions[1:], strict=False):
        assert first.get("EndTime") == second["StartTime"] >= first["StartTime"]
    assert [one["Status"] for one in state.transitions][-1] == state.secondary
    assert all("EndTime" in one for one in state.transitions[:-1])
    assert ("EndTime" in state.transitions[-1]) == state.final == (state.secondary in FINAL)
    assert state.status == FINAL.get(state.secondary, state.status)
    assert (state.status in ("InProgress", "Stopping")) != state.final
    total = states.seconds_in(state.transitions, ALL, now)
    assert total == pytest.approx(now - 100.0)


@pytest.mark.parametrize("end", sorted(FINAL))
@pytest.mark.parametrize("then", ALL)
def test_nothing_follows_an_end(end: str, then: str) -> None:
    state = JobState(
        FINAL[end], end, ({"Status": end, "StartTime": 1.0, "EndTime": 1.0, "StatusMessage": ""},)
    )
    with pytest.raises(ConfigurationError, match=f"that is {end} can't become {then}"):
        state.with_transition(then, 2.0)


@pytest.mark.parametrize(
    ("walk", "then"),
    [
        ((), "Training"),
        ((), "Uploading"),
        ((), "Completed"),
        (("Pending",), "Downloading"),
        (("Downloading",), "Uploading"),
        (("Downloading", "Training"), "Completed"),
        (("Downloading", "Training"), "Downloading"),
        (("Stopping",), "Training"),
        (("Stopping",), "Completed"),
        (("Downloading", "Training", "Interrupted"), "Training"),
        ((), "Nonsense"),
    ],
)
def test_refused_moves(walk: tuple[str, ...], then: str) -> None:
    state = states.initial_state(1.0)
    for step in walk:
        state = state.with_transition(step, 2.0)
    with pytest.raises(ConfigurationError):
        state.with_transition(then, 3.0)


def test_the_way_of_a_job_that_ends_well() -> None:
    state = states.initial_state(1.0)
    steps = ("Pending", "Starting", "Downloading", "Training", "Uploading", "Completed")
    for now, step in enumerate(steps, 2):
        state = state.with_transition(step, float(now))
        assert state.status == ("Completed" if step == "Completed" else "InProgress")
    assert [one["Status"] for one in state.transitions] == ["Starting", *steps]
    assert states.seconds_in(state.transitions, ("Starting",), 99.0) == 2.0


def test_a_job_that_is_asked_to_stop_stays_so_while_it_uploads() -> None:
    state = (
        states.initial_state(1.0)
        .with_transition("Downloading", 2.0)
        .with_transition("Training", 3.0)
        .with_transition("Stopping", 4.0)
    )
    assert state.status == "Stopping"
    state = state.with_transition("Uploading", 5.0)
    assert state.status == "Stopping"
    assert state.with_transition("Stopped", 6.0).status == "Stopped"
    assert state.with_transition("MaxRuntimeExceeded", 6.0).status == "Stopped"


def test_each_attempt_counts_and_what_goes_on_counts_until_now() -> None:
    state = (
        states.initial_state(0.0)
        .with_transition("Downloading", 1.0)
        .with_transition("Training", 2.0)
        .with_transition("Interrupted", 5.0)
    )
    state = (
        state.with_transition("Starting", 6.0)
        .with_transition("Downloading", 7.0)
        .with_transition("Training", 8.0)
    )
    assert states.seconds_in(state.transitions, ("Training",), 10.0) == 5.0


def test_a_message_can_be_given() -> None:
    state = states.initial_state(0.0).with_transition("Failed", 1.0, "because")
    assert state.transitions[-1]["StatusMessage"] == "because"
    assert state.final
