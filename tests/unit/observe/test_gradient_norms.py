"""Norms of gradients, of which a ledger takes finite ones alone."""

from __future__ import annotations

import numpy as np
import pytest

from syrtos.observe.gradient_norms import GradientNorms


@pytest.mark.parametrize(("own", "mean"), [(2.0, np.nan), (np.nan, 2.0), (2.0, np.inf)])
def test_norms_that_are_not_finite_are_not_taken(own: float, mean: float) -> None:
    norms = GradientNorms()
    norms.begin(0, 1)
    norms.add([np.array([own], np.float32)], [np.array([mean], np.float32)], 1.0)
    assert norms.take() is None


def test_norms_of_a_step() -> None:
    norms = GradientNorms()
    norms.begin(0, 1)
    norms.add([np.array([3.0, 4.0], np.float32)], [np.array([2.0], np.float32)], 1.0)
    assert norms.take() == (25.0, 4.0)
