"""Gradients that workers accumulate over several steps, each from its own shares, until an update is due.

Before rank 0 saves a model, `gather` moves the gradients of all workers to it, so that its file has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from syrtos.comm.communicator import Communicator
from syrtos.keras import backend, keras_internals
from syrtos.keras.features import asynchronous
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer, Variable


def gather(comm: Communicator, model: Model) -> None:
    """Moves the accumulated gradients of all workers to rank 0, as their sum, and sets those of the others to zero."""
    variables = _accumulated_gradients(model)
    if comm.size == 1 or not variables:
        return
    # Rank 0 may save the model before the update; the update sums them over the workers again, so they count once.
    for variable in variables:
        total = comm.allreduce(state.memory_of(variable))
        variable.assign(total if comm.rank == 0 else np.zeros_like(total))


def may_be_saved(comm: Communicator, callbacks: Iterable[object]) -> bool:
    """Returns whether a callback of any worker saves the model within an epoch, after a number of batches."""
    mine = any(isinstance(getattr(callback, "save_freq", None), int) for callback in callbacks)
    return any(comm.agree("saves within epochs?", float(mine)))


def begin(comm: Communicator, model: Model) -> None:
    """Keeps accumulated gradients on rank 0 alone, at the beginning of `fit`, where all workers hold equal ones."""
    variables = _accumulated_gradients(model)
    # Equal ones were loaded from one file, or computed from whole batches, and must count once.
    if comm.size > 1 and variables and state.are_equal(comm, [state.checksum(v) for v in variables]) and comm.rank:
        for variable in variables:
            variable.assign(np.zeros_like(state.memory_of(variable)))


def _accumulated_gradients(model: Model) -> list[Variable]:
    """Returns the variables in which a model's optimizer accumulates gradients, of this worker's shares alone.

    Empty where it has accumulated no steps since its last update, and where workers hold no gradients of their own.
    """
    optimizer = getattr(model, "optimizer", None)
    optimizer: Optimizer | None = getattr(optimizer, "inner_optimizer", optimizer)
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    own_each = (
        asynchronous.asynchronous_servers() is None
        and not backend.computes_global_batches()
        and not state.optimizers_differ()
    )
    if optimizer is None or not steps or not own_each or not optimizer.built:
        return []
    complete = int(state.memory_of(keras_internals.updates_of(optimizer))) % steps == 0
    return [] if complete else keras_internals.accumulated_by(optimizer)
