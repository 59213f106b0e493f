"""`--on-nan` on torch: checks gradients before each update, and undoes what a batch has changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.keras import keras_internals, updates
from syrtos.keras.features import finite
from syrtos.keras.torch import gradients, torch_internals
from syrtos.keras.torch.step import current_step
from syrtos.keras.trainer import timing

if TYPE_CHECKING:
    import keras

    from syrtos.keras.protocols import Model, Optimizer
    from syrtos.keras.updates import Update


def apply_if_finite(
    update: Update,
    grads: Sequence[torch.Tensor],
    apply: Callable[[Sequence[torch.Tensor]], None],
) -> None:
    """Calls ``apply`` with reduced gradients, or changes nothing if any worker's is not finite.

    Gradients that are accumulated are this worker's own, and checked before they are added;
    `check_finite` checks their sum.
    """
    optimizer = cast("Optimizer", update.optimizer)
    accumulates = updates.accumulates(optimizer)
    results = list(grads) if accumulates else gradients.exchange(update, grads)
    comm = cast("Communicator | None", update.reduction)
    flags = _finite(results)
    own = flags if accumulates else _own_finite(grads)
    if accumulates and comm is not None:
        with timing.exchanging():
            flags = (comm.allreduce(np.logical_not(flags).astype(np.int32)) == 0).tolist()
    number, in_step = int(optimizer.iterations) + 1, finite.is_in_step()
    if not finite.look(comm, update.variables, flags, own, number, in_step):
        keras_internals.count_no_update(optimizer)
        return
    with contextlib.nullcontext() if accumulates else update.taking_as_given():
        apply(results)


def check_finite(
    update: Update, grads: Sequence[torch.Tensor], own: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Returns reduced gradients, once they have been looked at."""
    optimizer, flags, mine = cast("Optimizer", update.optimizer), _finite(grads), _own_finite(own)
    comm = cast("Communicator | None", update.reduction)
    if finite.leaves_out():
        # `apply_if_finite` has looked at each batch; this is the sum of accumulated gradients.
        finite.stop(comm, update.variables, flags, mine)
    number, in_step = int(optimizer.iterations) + 1, finite.is_in_step()
    finite.look(comm, update.variables, flags, mine, number, in_step)
    return grads


def _own_finite(grads: Sequence[torch.Tensor]) -> list[bool]:
    # Whatever the row that does not count has given, this worker is not the cause.
    step = current_step()
    return _finite(grads) if step is None or step.samples else [True]


def _finite(grads: Sequence[torch.Tensor]) -> list[bool]:
    """Returns for each gradient whether all its numbers are finite."""
    # One transfer from the device for all of them.
    flags = [torch.isfinite(g.coalesce().values() if g.is_sparse else g).all() for g in grads]
    return torch.stack(flags).tolist() if flags else []


def undo_if_left_out(
    model: Model, session: Session, step: Callable[[], object]
) -> Callable[[], object]:
    """Wraps a training step: if it leaves out an update, its batch changes nothing else either."""

    def make_or_undo() -> object:
        # The optimizer has left the weights as they were; metrics and moving statistics have seen
        # the batch.
        variables = cast("list[keras.Variable]", finite.changed_by_batch(model))
        changed: list[torch.Tensor] = [variable.value for variable in variables]
        buffers = torch_internals.named_buffers(cast("keras.Model", model))
        before = [
            (tensor, tensor.detach().clone())
            for tensor in [*changed, *(buffer for _, buffer in buffers)]
        ]
        logs = step()
        if not finite.step_is_left_out(session.comm):
            return logs
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        return finite.results_of_left_out_step(model, logs)

    return make_or_undo
