"""Checks become rarer, keep within their budget, and are the same on all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.dialects.estimator import checks
from syrtos.dialects.estimator.checks import Checks


class Clock:
    """A clock that the test sets."""

    now = 0.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(checks.time, "monotonic", lambda: Clock.now)
    Clock.now = 0.0
    return Clock()


def checked_steps(
    comm: InProcessCommunicator, steps: int, cost: float, step: float, few: int = 0
) -> list[int]:
    """The numbers of the steps that were checked, from 0, where the first ``few`` batches have few rows."""
    found, made = Checks(), []
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


def test_an_end_is_an_end(together: Callable[..., list[Any]]) -> None:
    found = Checks()
    assert found.is_due()
    found.end()
    assert not found.is_due()
