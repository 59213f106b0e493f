"""The noise of gradients as Adam's moments show it, where no worker sees its own gradient.

See `syrtos.report.noise_scale`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from syrtos.comm.communicator import Array
from syrtos.keras import keras_internals, updates
from syrtos.keras.features.feature import Feature, Fit

if TYPE_CHECKING:
    from syrtos.keras.protocols import Optimizer


class _JaxArray(Protocol):
    def addressable_data(self, index: int) -> Array:
        """Returns this process's part of the array."""
        ...


class _JaxVariable(Protocol):
    value: _JaxArray


class Moments(Feature):
    """The noise of gradients in the record of each epoch."""

    name = "moments"

    def epoch_facts(self, fit: Fit) -> dict[str, object]:
        # Where syrtos exchanges gradients, their norms say it.
        is_compiled = self.session.ledger.told.get("exchange") == "compiled"
        found = (
            noise_moments(fit.model.optimizer)
            if is_compiled and self.session.world.rank == 0 and fit.model is not None
            else None
        )
        return {"moments": found} if found else {}


FEATURE = Moments

# Steps after which a mean over some of them is one.
_FEWEST = 20


def noise_moments(optimizer: Optimizer) -> list[float] | None:
    """Returns four numbers about the noise of gradients; None where nothing can be said.

    They are the mean of the squared norms of gradients, the squared norm of their mean, the part of
    a single step's variance that this mean keeps, and over how many steps the first is a mean.

    With gradients of variance V the running mean of t steps, whose weights are those of Adam with
    its correction, has the variance V times the sum of the squares of its weights. The sums are
    made on this worker's device, of its own copy: one worker may ask alone.
    """
    found = keras_internals.moments_of(optimizer)
    if found is None or updates.accumulates(optimizer):
        return None
    first, second, beta_1, beta_2 = found
    first_copies, second_copies = _whole_copies(first), _whole_copies(second)
    steps = _whole_copies([optimizer.iterations])
    if steps is None or int(steps[0]) < _FEWEST or first_copies is None or second_copies is None:
        return None
    made = int(steps[0])
    squares = sum(float(each.sum()) for each in second_copies) / (1 - beta_2**made)
    mean = sum(float((each * each).sum()) for each in first_copies) / (1 - beta_1**made) ** 2
    weights = (1 - beta_1) * beta_1 ** np.arange(made) / (1 - beta_1**made)
    return [squares, mean, float(np.sum(weights**2)), min(made, 1 / (1 - beta_2))]


def _whole_copies(variables: Sequence[object]) -> list[Array] | None:
    """Returns this worker's float32 copies of JAX variables; None if one is split over workers."""
    values = [cast("_JaxVariable", variable).value for variable in variables]
    # To read a split array takes all workers, and one asks alone here.
    if not all(getattr(value, "is_fully_replicated", False) for value in values):
        return None
    return [value.addressable_data(0).astype("float32") for value in values]
