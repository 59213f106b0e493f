"""Steps are counted by the batches that Keras tells of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from syrtos.keras.features.feature import Fit
from syrtos.keras.trainer.callbacks import AfterUsers


def count(ends: list[int], each: int, total: int | None) -> list[int]:
    """The steps of an epoch's calls, of which Keras tells the last batches."""
    model, found = SimpleNamespace(steps_per_execution=each), []
    for call, end in enumerate(ends):
        fake: Any = SimpleNamespace(
            params={"steps": total}, model=model, fit=Fit(batch=call * each)
        )
        found.append(AfterUsers._steps_of_training(fake, end))
    return found


@pytest.mark.parametrize(
    ("ends", "each", "total", "expected"),
    [
        ([0, 1, 2], 1, 3, [1, 1, 1]),
        # Keras 3 tells of a batch after the end of the data, Keras 2 of the last one.
        ([2, 5, 8, 11], 3, 11, [3, 3, 3, 2]),
        ([2, 5, 8, 10], 3, 11, [3, 3, 3, 2]),
        ([2], 3, 2, [2]),
        ([2, 5], 3, None, [3, 3]),
        # A loop of the script's own may tell anything.
        ([0, 0, 0], 1, None, [1, 1, 1]),
        ([7, 0], 1, None, [1, 1]),
    ],
)
def test_a_last_call_of_fewer_batches_has_fewer_steps(
    ends: list[int], each: int, total: int | None, expected: list[int]
) -> None:
    assert count(ends, each, total) == expected
