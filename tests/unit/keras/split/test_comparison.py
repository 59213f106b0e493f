"""What counts as a difference between one process and all workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from syrtos.keras.split import comparison


@pytest.mark.parametrize(
    ("before", "one", "other", "are_equal"),
    [
        (np.inf, 2.5, 2.3, False),  # the best loss so far
        (1e9, 2.5, 2.3, False),
        (np.inf, 2.5, 2.5, True),
        ([np.inf, 1.0], [2.0, 3.0], [2.0, 3.0], True),
        (1.0, 1.0 + 1e-9, 1.0 + 3e-9, True),  # rounding of the value
        (5.0, 6.0, 6.1, False),
    ],
)
def test_changes_of_values_that_stand_for_none(
    before: Any, one: Any, other: Any, are_equal: bool
) -> None:
    assert (
        comparison.distance_of_changes(*map(np.asarray, (before, one, other))) < 1e-4
    ) == are_equal


def test_a_gradient_near_zero_has_no_difference_but_for_rounding() -> None:
    """As that of a bias before a BatchNormalization."""
    kernel, bias = np.full(100, 0.5), np.full(4, 1e-8)
    rows = comparison.compare_gradients(["kernel", "bias"], [kernel, bias], [kernel, -bias])
    assert [row.difference < 1e-4 for row in rows] == [True, True]
    rows = comparison.compare_gradients(["kernel", "bias"], [kernel, bias], [kernel, bias + 1e-3])
    assert [row.difference < 1e-4 for row in rows] == [True, False]
