"""The adaptive sum: gradients that point the same way are averaged, orthogonal ones added.

Maleki et al. 2020, "Scaling Distributed Training with Adaptive Summation", arXiv:2006.02924,
equation 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def combine(arrays: Sequence[Array]) -> Array:
    """Adds equally shaped floating arrays pairwise in a tree, neighbours first.

    The result is equal on every worker that is given equal arrays.
    """
    level = list(arrays)
    while len(level) > 1:
        pairs = [_pair(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def _pair(a: Array, b: Array) -> Array:
    """Returns ``(1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b``, with factors computed in float64."""
    flat_a, flat_b = a.reshape(-1).astype(np.float64), b.reshape(-1).astype(np.float64)
    dot, square_a, square_b = flat_a @ flat_b, flat_a @ flat_a, flat_b @ flat_b
    # An array of zeros has no direction: the other one is added as it is.
    factor_a = 1.0 - dot / (2.0 * square_a) if square_a else 1.0
    factor_b = 1.0 - dot / (2.0 * square_b) if square_b else 1.0
    return (a * a.dtype.type(factor_a) + b * b.dtype.type(factor_b)).astype(a.dtype, copy=False)
