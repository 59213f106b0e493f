"""What Adam's moments say of the noise of gradients, where no worker sees its own gradient: see `syrtos.report.noise_scale`."""

from __future__ import annotations

from typing import Any

import numpy as np

from syrtos.keras import keras_internals

_FEWEST = 20  # steps, after which a mean over some of them is one


def described(optimizer: Any) -> list[float] | None:
    """The mean of the squared norms of gradients, the squared norm of their mean, and what part of a single step's variance that mean keeps; None where
    nothing can be said.

    With gradients of variance V the running mean of t steps, whose weights are those of Adam with its correction, has the variance V times the sum of the
    squares of its weights.
    """
    found = keras_internals.moments_of(optimizer)
    steps = int(np.asarray(optimizer.iterations)) if found else 0
    if found is None or steps < _FEWEST:
        return None
    first, second, beta_1, beta_2 = found
    squares = sum(float(np.sum(np.asarray(each, np.float64))) for each in second) / (1 - beta_2**steps)
    mean = sum(float(np.sum(np.square(np.asarray(each, np.float64)))) for each in first) / (1 - beta_1**steps) ** 2
    weights = (1 - beta_1) * beta_1 ** np.arange(steps) / (1 - beta_1**steps)
    return [squares, mean, float(np.sum(weights**2))]
