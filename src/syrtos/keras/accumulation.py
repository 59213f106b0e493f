"""Gradients in the making, where each worker adds up those of its own shares until an update is due: a file of rank 0 has all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from syrtos.comm.communicator import Communicator
from syrtos.keras import asynchronous, backend, keras_internals, state


def gather(comm: Communicator, model: Any) -> None:
    """Leaves rank 0 with the sum over all workers, and the others with zero: the update sums them again, and rank 0 may save the model before it."""
    variables = _in_the_making(model)
    if comm.size == 1 or not variables:
        return
    for variable in variables:
        total = comm.allreduce(state.memory_of(variable))
        variable.assign(total if comm.rank == 0 else np.zeros_like(total))


def may_be_saved(comm: Communicator, callbacks: Iterable[Any]) -> bool:
    """Whether a callback of any worker saves the model after so many batches, within an epoch."""
    mine = any(isinstance(getattr(callback, "save_freq", None), int) for callback in callbacks)
    return any(comm.agree("saves within epochs?", float(mine)))


def begin(comm: Communicator, model: Any) -> None:
    """At the beginning of `fit`: what all workers have loaded from one file, or computed from whole batches, counts once."""
    variables = _in_the_making(model)
    if comm.size > 1 and variables and state.are_equal(comm, [state.checksum(v) for v in variables]) and comm.rank:
        for variable in variables:
            variable.assign(np.zeros_like(state.memory_of(variable)))


def _in_the_making(model: Any) -> list[Any]:
    """The variables of an optimizer that has accumulated some steps since its last update."""
    optimizer: Any = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    own_each = asynchronous.own() is None and not backend.computes_global_batches() and not state.optimizers_differ()
    if not steps or not own_each or not optimizer.built:
        return []
    complete = int(state.memory_of(keras_internals.updates_of(optimizer))) % steps == 0
    return [] if complete else keras_internals.accumulated_by(optimizer)
