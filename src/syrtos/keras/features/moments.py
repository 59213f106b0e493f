"""The noise of gradients as Adam's moments show it, where no worker sees its own gradient.

See `syrtos.report.noise_scale`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from syrtos.keras import keras_internals

_FEWEST = 20  # steps, after which a mean over some of them is one


def noise_moments(optimizer: Any) -> list[float] | None:
    """Returns four numbers about the noise of gradients; None where nothing can be said.

    They are the mean of the squared norms of gradients, the squared norm of their mean, the part of a single step's
    variance that this mean keeps, and over how many steps the first is a mean.

    With gradients of variance V the running mean of t steps, whose weights are those of Adam with its correction, has
    the variance V times the sum of the squares of its weights. The sums are made on this worker's device, of its own
    copy: one worker may ask alone.
    """
    found = keras_internals.moments_of(optimizer)
    if found is None or getattr(optimizer, "gradient_accumulation_steps", None):
        return None
    first, second, beta_1, beta_2 = found
    copies = [[_copy(each.value) for each in kind] for kind in (first, second)]
    steps = _copy(optimizer.iterations.value)
    if steps is None or int(steps) < _FEWEST or any(each is None for kind in copies for each in kind):
        return None
    made = int(steps)
    squares = sum(float(each.sum()) for each in copies[1]) / (1 - beta_2**made)
    mean = sum(float((each * each).sum()) for each in copies[0]) / (1 - beta_1**made) ** 2
    weights = (1 - beta_1) * beta_1 ** np.arange(made) / (1 - beta_1**made)
    return [squares, mean, float(np.sum(weights**2)), min(made, 1 / (1 - beta_2))]


def _copy(value: Any) -> Any:
    """Returns this worker's whole copy of an array of JAX as float32; None if the array is split over workers.

    To read a split one takes all of them.
    """
    return value.addressable_data(0).astype("float32") if getattr(value, "is_fully_replicated", False) else None
