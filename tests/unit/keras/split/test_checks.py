"""Checks become rarer, keep within their budget, and are the same on all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.keras.split import checks
from syrtos.keras.split.checks import Checks, Epochs


class Clock:
    """A clock that the test sets."""

    now = 0.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(checks.time, "monotonic", lambda: Clock.now)
    Clock.now = 0.0
    return Clock()


def epochs_of(steps: int | None) -> Epochs:
    """No epoch has begun; each will have so many steps."""
    epochs: Any = Epochs
    made: Epochs = epochs(None)
    made.steps = steps
    return made


def checked_steps(
    comm: InProcessCommunicator, steps: int, cost: float, step: float, few: int = 0
) -> list[int]:
    """The numbers of the steps that were checked, from 0, where the first ``few`` batches have few rows."""
    found, made = Checks(epochs_of(None)), []
    for number in range(steps):
        if found.is_due():
            made.append(number)
            if comm.rank == 0:
                Clock.now += cost
            found.note_check(comm, cost * (1 + comm.rank), number < few)
        if comm.rank == 0:
            Clock.now += step
        found.count(1)
    return made


def test_gaps_grow(together: Callable[..., list[Any]]) -> None:
    one, other = together(2, lambda comm: checked_steps(comm, 100, 1e-3, 1.0))
    assert one == other == [0, 1, 2, 4, 7, 12, 20, 33, 54, 88]


def test_costly_checks_keep_to_two_parts_of_a_hundred(together: Callable[..., list[Any]]) -> None:
    (made,) = together(1, lambda comm: checked_steps(comm, 2000, 1.5, 1.0))
    assert 5 <= len(made) <= 2 + 2000 * 0.02 / 1.5


def test_batches_of_few_rows_are_no_end(together: Callable[..., list[Any]]) -> None:
    (made,) = together(1, lambda comm: checked_steps(comm, 10, 1e-3, 1.0, few=3))
    assert made[:4] == [0, 1, 2, 3]


def test_the_first_step_of_an_epoch_is_checked(together: Callable[..., list[Any]]) -> None:
    def epochs(comm: InProcessCommunicator) -> list[bool]:
        begun = epochs_of(None)
        found = Checks(begun)
        found.note_check(comm, 1e-3, False)
        found.count(1)
        found.note_check(comm, 1e-3, False)
        found.note_check(comm, 1e-3, False)
        before = found.is_due()
        begun.count += 1
        return [before, found.is_due()]

    assert together(1, epochs) == [[False, True]]


def test_the_first_epochs_are_checked_at_any_cost(together: Callable[..., list[Any]]) -> None:
    def epochs(comm: InProcessCommunicator) -> list[bool]:
        begun = epochs_of(None)
        found, due = Checks(begun), []
        found.note_check(comm, 30.0, False)
        for _ in range(5):
            found.count(1)
            begun.count += 1
            due.append(found.is_due())
            if due[-1]:
                found.note_check(comm, 30.0, False)
        return due

    assert together(1, epochs) == [[True, True, True, False, False]]


def test_an_end_is_an_end(together: Callable[..., list[Any]]) -> None:
    found = Checks(epochs_of(None))
    assert found.is_due()
    found.end()
    assert not found.is_due()


@pytest.mark.parametrize("known", [True, False])
def test_the_step_that_ends_an_epoch_is_checked_once(
    together: Callable[..., list[Any]], known: bool
) -> None:
    """In the first epoch if its length is known, else in the second."""

    def ends(comm: InProcessCommunicator) -> list[int]:
        # Before the first epoch begins, as `fit` makes its function.
        begun = epochs_of(10 if known else None)
        found, at = Checks(begun, trains=True), []
        for number in range(30):
            if number % 10 == 0:
                begun.count += 1
            assert found.is_due() or number
            assert found.begins_epoch() == (number in (10, 20))
            if found.is_due():
                if found.ends_epoch:
                    at.append(number)
                found.note_check(comm, 1e-3, False)
            Clock.now += 1.0
            found.count(1)
        return at

    assert together(1, ends) == [[9 if known else 19]]
