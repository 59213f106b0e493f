"""`--on-nan` on TensorFlow: the graph checks gradients, and undoes what a batch has changed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Array
from syrtos.comm.world import Session
from syrtos.keras import keras_internals, updates
from syrtos.keras.features import finite
from syrtos.keras.tensorflow import assignments, gradients, ops
from syrtos.keras.tensorflow.reduction import Reduction

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer
    from syrtos.keras.tensorflow.types import Gradient
    from syrtos.keras.updates import Update

    class _Variable(Protocol):
        @property
        def value(self) -> tf.Variable: ...


def apply_if_finite(
    update: Update,
    grads: Sequence[Gradient | None],
    apply: Callable[[Sequence[Gradient | None]], None],
) -> None:
    """Calls ``apply`` with reduced gradients, or changes nothing if a worker has a non-finite one.

    Gradients that are accumulated are this worker's own, and checked before they are added;
    `check_finite` checks their sum.
    """
    accumulates = updates.accumulates(update.optimizer)
    results = list(grads) if accumulates else gradients.exchange(update, grads)
    good = _may_be_applied(update, results, grads, of_shares=accumulates)
    optimizer = cast("Optimizer", update.optimizer)
    leave_out = functools.partial(keras_internals.count_no_update, optimizer)
    with contextlib.nullcontext() if accumulates else update.taking_as_given():
        tf.cond(good, lambda: apply(results), leave_out)


def check_finite(
    update: Update, grads: Sequence[Gradient | None], own: Sequence[Gradient | None]
) -> list[Gradient | None]:
    """Returns reduced gradients that depend on the look which may stop the training."""
    # Thus a graph makes an update only after the look.
    with tf.control_dependencies([_may_be_applied(update, grads, own)]):
        return [
            tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
            for gradient in grads
        ]


def _may_be_applied(
    update: Update,
    grads: Sequence[Gradient | None],
    own: Sequence[Gradient | None],
    of_shares: bool = False,
) -> tf.Tensor:
    """Returns whether gradients may be applied, a Boolean scalar.

    This worker's ``own`` gradients are checked only where ``grads`` are not all finite. With
    ``of_shares``, ``grads`` are those of this worker's share, else of the global batch.
    """
    reduction = cast("Reduction | None", update.reduction)
    own_each = of_shares or (
        reduction is not None and bool(reduction.local) and finite.leaves_out()
    )
    comm = None if reduction is None or (reduction.local and not own_each) else reduction.comm
    flags = _are_finite(grads)
    if own_each and comm is not None and comm.size > 1:
        mine = flags
        flags = ops.allreduce(comm, tf.cast(tf.logical_not(flags), tf.int32)) == 0
    else:
        mine = tf.cond(tf.reduce_all(flags), lambda: tf.ones_like(flags), lambda: _are_finite(own))
    step = assignments.current_step()
    if step is not None:
        mine = tf.logical_or(mine, tf.logical_not(step.active))
    in_sum = updates.accumulates(update.optimizer) and not of_shares
    in_step = finite.is_in_step()

    def look(flags: Array, mine: Array, number: Array) -> list[Array]:
        terms = finite.take_terms()
        among = comm if terms is None else whole
        if terms is not None:  # the gradients of whole batches are sums of the workers' terms
            mine = np.asarray(terms)
        if in_sum and finite.leaves_out():
            finite.stop(among, update.variables, flags.tolist(), mine.ravel().tolist())
        is_good = finite.look(
            among, update.variables, flags.tolist(), mine.ravel().tolist(), int(number) + 1, in_step
        )
        return [np.asarray(is_good)]

    whole = world.sharing().comm if assignments.computes_whole_batch() else None
    iterations = cast("Optimizer", update.optimizer).iterations
    good = ops.exchange(
        look, [flags, mine, tf.convert_to_tensor(cast("tf.Tensor", iterations))], [tf.bool]
    )[0]
    return tf.ensure_shape(good, [])


def _are_finite(grads: Sequence[Gradient | None]) -> tf.Tensor:
    """Returns whether all of each gradient is finite: Boolean, shape (number of gradients,)."""
    # Keras has left out variables without a gradient: None is not among them.
    given = (g.values if isinstance(g, tf.IndexedSlices) else cast("tf.Tensor", g) for g in grads)
    values = map(tf.convert_to_tensor, given)
    return tf.stack(
        [
            tf.reduce_all(tf.math.is_finite(v)) if v.dtype.is_floating else tf.constant(True)
            for v in values
        ]
    )


def undo_if_left_out(
    model: Model, session: Session, step: Callable[[], object]
) -> Callable[[], object]:
    """Wraps a training step: if its update is left out, what else the batch changed is put back."""

    def make_or_undo() -> object:
        changed = cast("Sequence[_Variable]", finite.changed_by_batch(model))
        variables = [variable.value for variable in changed]
        before = [tf.identity(variable) for variable in variables]
        logs = step()
        (left_out,) = ops.exchange(
            lambda: [np.asarray(finite.step_is_left_out(session.comm))], [], [tf.bool]
        )

        def undo() -> object:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            return _as_tensors(finite.results_of_left_out_step(model, logs))

        # What is put back is the same on all workers.
        with assignments.pausing_notes():
            return tf.cond(
                tf.ensure_shape(left_out, []), undo, functools.partial(_as_tensors, logs)
            )

    return make_or_undo


def _as_tensors(logs: object) -> object:
    return tf.nest.map_structure(tf.convert_to_tensor, logs)
