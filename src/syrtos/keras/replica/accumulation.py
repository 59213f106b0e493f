"""Gradients that optimizers accumulate over several steps until an update is due.

Where a step reduces gradients only when they are applied, each worker accumulates those of its own
shares, and the update adds them up over the workers. Where a step reduces gradients when they are
made, or computes whole batches, all workers accumulate the same, and the update adds nothing up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.keras import backend, keras_internals, updates
from syrtos.keras.replica import state
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer, Variable


def gather(comm: Communicator, model: Model) -> None:
    """Moves the sum of the workers' own accumulated gradients to rank 0, and zeroes the others'."""
    if comm.size == 1:
        return
    # Rank 0 may save the model before the update; the update adds them up over the workers again,
    # so they count once.
    for optimizer in _accumulating(model):
        for variable in _pending_gradients(optimizer) if are_added_up(optimizer) else ():
            total = comm.allreduce(state.memory_of(variable))
            variable.assign(total if comm.rank == 0 else np.zeros_like(total))


def may_be_saved(comm: Communicator, callbacks: Iterable[object]) -> bool:
    """Returns whether a callback of any worker saves the model within an epoch.

    Such a callback saves after a number of batches.
    """
    mine = any(isinstance(getattr(callback, "save_freq", None), int) for callback in callbacks)
    return any(comm.agree("saves within epochs?", float(mine)))


def begin(comm: Communicator, model: Model) -> None:
    """Makes accumulated gradients count once at the beginning of `fit`.

    All workers may have loaded them from one file.
    """
    if comm.size == 1 or _is_alone():
        return
    for optimizer in _accumulating(model):
        variables = _pending_gradients(optimizer)
        if are_of_whole_batches(optimizer):
            state.broadcast(comm, variables)
        elif variables and state.are_equal(
            comm, [state.checksum(variable) for variable in variables]
        ):
            _keep_on_rank_0(comm, variables)


def note_kind(comm: Communicator, model: Model, of_whole_batches: bool) -> None:
    """Notes which gradients a model's optimizers accumulate from now on, and converts earlier ones.

    All workers call this together.

    Args:
        comm: the workers.
        model: whose optimizers they are.
        of_whole_batches: whether the next steps accumulate gradients of whole batches, else each
            worker's own.
    """
    if comm.size == 1 or _is_alone() or backend.computes_global_batches():
        return
    for optimizer in _accumulating(model):
        before, after = are_added_up(optimizer), not of_whole_batches
        record_of(optimizer, updates.OptimizerRecord).accumulates_whole_batches = of_whole_batches
        for variable in _pending_gradients(optimizer):
            convert(comm, variable, before, after)


class Kind:
    """The kind of gradients that a function of a model accumulates, noted where it changes."""

    def __init__(self, comm: Communicator, model: Model) -> None:
        """
        Args:
            comm: the workers.
            model: whose function it is.
        """
        self._comm, self._model = comm, model
        self._noted: tuple[bool, object] | None = None

    def note(self, of_whole_batches: bool) -> None:
        """Does what `note_kind` does, once for each optimizer and kind.

        All workers call this before each step.
        """
        kind = of_whole_batches, getattr(self._model, "optimizer", None)
        if kind != self._noted:
            self._noted = kind
            note_kind(self._comm, self._model, of_whole_batches)


def convert(comm: Communicator, variable: Variable, was_added_up: bool, is_added_up: bool) -> None:
    """Turns accumulated gradients of one kind into the other, with the same sum.

    All workers call this together.
    """
    if was_added_up and not is_added_up:
        variable.assign(comm.allreduce(state.memory_of(variable)))
    elif is_added_up and not was_added_up:
        _keep_on_rank_0(comm, [variable])


def are_added_up(optimizer: Optimizer) -> bool:
    """Returns whether an update sums this optimizer's accumulated gradients over the workers."""
    return not are_of_whole_batches(optimizer) and not _is_alone()


def are_of_whole_batches(optimizer: Optimizer) -> bool:
    """Returns whether this optimizer accumulates whole batches' gradients, equal on all workers."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    whole = read_record(inner, updates.OptimizerRecord).accumulates_whole_batches
    return backend.computes_global_batches() or whole


def accumulated_by(optimizer: Optimizer) -> list[Variable]:
    """Returns the variables in which an optimizer, or one inside of it, accumulates gradients."""
    return keras_internals.accumulated_by(getattr(optimizer, "inner_optimizer", optimizer))


def _is_alone() -> bool:
    """Returns whether each worker trains alone for some steps, with an optimizer of its own."""
    servers = world.current().servers if world.is_initialized() else None
    return state.optimizers_differ() or (servers is not None and not servers.synchronous)


def _accumulating(model: Model) -> list[Optimizer]:
    """Returns a model's optimizers that accumulate gradients, out of those that scale a loss."""
    found = [
        getattr(optimizer, "inner_optimizer", optimizer) for optimizer in state.optimizers_of(model)
    ]
    return [optimizer for optimizer in found if updates.accumulates(optimizer)]


def _pending_gradients(optimizer: Optimizer) -> list[Variable]:
    """Returns the variables in which an optimizer accumulates.

    There are none where it has accumulated no step since its last update.
    """
    if not optimizer.built:
        return []
    steps: int = getattr(optimizer, "gradient_accumulation_steps", 1)
    is_applied = int(state.memory_of(keras_internals.updates_of(optimizer))) % steps == 0
    return [] if is_applied else keras_internals.accumulated_by(optimizer)


def _keep_on_rank_0(comm: Communicator, variables: Iterable[Variable]) -> None:
    for variable in variables if comm.rank else ():
        variable.assign(np.zeros_like(state.memory_of(variable)))
