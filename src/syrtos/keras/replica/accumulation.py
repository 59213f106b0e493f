"""Gradients that an optimizer accumulates over several steps until an update is due.

Where a step reduces gradients only when they are applied, each worker accumulates those of its own shares, and the
update sums them over the workers. Where it reduces them when they are made, or computes whole batches, all workers
accumulate the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.keras import backend, keras_internals
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer, Variable

# Optimizers that accumulate the gradients of whole batches. All others accumulate each worker's own.
_of_whole_batches: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def gather(comm: Communicator, model: Model) -> None:
    """Moves the accumulated gradients of all workers to rank 0, as their sum, and sets those of the others to zero.

    Gradients of whole batches stay as they are: each worker has them.
    """
    variables = _each_workers_own(model)
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
    """Keeps equal gradients, which were loaded from one file, on rank 0 alone, at the beginning of `fit`."""
    variables = _each_workers_own(model)
    # The update sums them over the workers, so they must count once.
    if comm.size > 1 and variables and _are_equal(comm, variables) and comm.rank:
        for variable in variables:
            variable.assign(np.zeros_like(state.memory_of(variable)))


def accumulate_whole_batches(comm: Communicator, model: Model, whole: bool) -> None:
    """Notes which gradients the next step accumulates, and turns those accumulated so far into the same kind.

    All workers call this together before each step.

    Args:
        comm: the workers.
        model: whose optimizer it is.
        whole: whether the step accumulates gradients of whole batches, else each worker's own.
    """
    optimizer = _optimizer_of(model)
    if optimizer is None or comm.size == 1 or whole is (optimizer in _of_whole_batches):
        return
    if whole:
        variables = _each_workers_own(model)
        _of_whole_batches.add(optimizer)
        if not variables or _are_equal(comm, variables):  # all were put back from snapshots of whole batches
            return
        for variable in variables:
            variable.assign(comm.allreduce(state.memory_of(variable)))
    else:
        _of_whole_batches.discard(optimizer)
        begin(comm, model)


def are_added_up(optimizer: Optimizer) -> bool:
    """Returns whether the next update takes the sum over workers of the gradients that this optimizer has accumulated."""
    return not backend.computes_global_batches() and optimizer not in _of_whole_batches


def _optimizer_of(model: Model) -> Optimizer | None:
    """Returns a model's optimizer, without one that scales its loss, if it accumulates gradients."""
    optimizer = getattr(model, "optimizer", None)
    optimizer: Optimizer | None = getattr(optimizer, "inner_optimizer", optimizer)
    return optimizer if getattr(optimizer, "gradient_accumulation_steps", None) else None


def _each_workers_own(model: Model) -> list[Variable]:
    """Returns the variables in which a model's optimizer accumulates gradients, of this worker's shares alone.

    Empty where it has accumulated no steps since its last update, and where workers hold no gradients of their own.
    """
    optimizer = _optimizer_of(model)
    if optimizer is None or not optimizer.built or not are_added_up(optimizer):
        return []
    servers = world.current().servers
    if state.optimizers_differ() or (servers is not None and not servers.synchronous):
        return []
    steps: int = getattr(optimizer, "gradient_accumulation_steps", 1)
    complete = int(state.memory_of(keras_internals.updates_of(optimizer))) % steps == 0
    return [] if complete else keras_internals.accumulated_by(optimizer)


def _are_equal(comm: Communicator, variables: Iterable[Variable]) -> bool:
    return state.are_equal(comm, [state.checksum(variable) for variable in variables])
