"""Gradients that a script's own step computes, and looks at before an optimizer gets them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.keras.replica import state
from syrtos.keras.split import noted_gradients
from syrtos.keras.tensorflow import ops, tf_internals
from syrtos.keras.tensorflow.assignments import (
    as_one_process,
    computes_whole_batch,
    current_step,
)
from syrtos.keras.tensorflow.reduction import Reduction
from syrtos.keras.tensorflow.strategy import replica_of_world, splits_in_script
from syrtos.keras.trainer import timing
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.protocols import FrameworkVariable, P, R
    from syrtos.keras.tensorflow.types import Gradient, Number


def reduced_where_made(original: Callable[..., object]) -> Callable[..., object]:
    """Wraps `GradientTape.gradient` and its like: variables' gradients become the global batch's.

    This is done in a training step of the script's own. Gradients by anything else than variables,
    e.g. inputs, stay this worker's.
    """
    # What the script does with the gradients (clipping, norms, a second pass at other weights, an
    # optimizer of its own) is then what it is in one process.

    def gradient(first: object, second: object, *args: object, **kwargs: object) -> object:
        step = current_step()
        if step is None or not step.reduces_early or not _reduces_here():
            return original(first, second, *args, **kwargs)
        made = original(first, second, *args, **kwargs)
        sources = _sources_of(first, second, args, kwargs)
        variables = tf.nest.flatten(sources)
        if not variables or not all(map(_is_variable, variables)):
            return made
        apply = Reduction(step.session.comm).apply
        # A script may differentiate the gradients again, e.g. for a penalty on their norm.
        if tf_internals.may_be_recorded():
            apply = functools.partial(_reduce_differentiably, step.session.comm)
        reduced = apply(tf.nest.flatten(made), variables, step.samples)
        return tf.nest.pack_sequence_as(made, reduced)

    return gradient


_of_rows: ContextVar[bool] = ContextVar("of_rows", default=False)


def of_own_rows(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps `GradientTape.jacobian` and its like: their row-by-row gradients stay this worker's."""

    def jacobian(*args: P.args, **kwargs: P.kwargs) -> R:
        with set_within(_of_rows, True):
            return original(*args, **kwargs)

    return jacobian


def _reduces_here() -> bool:
    return not _of_rows.get()


def _sources_of(
    first: object, second: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Returns the sources of `tape.gradient(target, sources)`, or of `tf.gradients(ys, xs)`."""
    if isinstance(first, tf.GradientTape):
        return args[0] if args else kwargs["sources"]
    return second


def _is_variable(source: FrameworkVariable) -> bool:
    return isinstance(state.held_objects([source])[0], tf.Variable)


def applied_by_a_replica(original: Callable[..., R]) -> Callable[..., R]:
    """Wraps `apply_gradients` of optimizers that want to be called by a replica of a strategy.

    In a loop of the script's own there is no strategy to the script: the gradients are the mean
    over the workers, of whole batches or of their own, and the update is made as in one process.
    """

    @functools.wraps(original)
    def apply_gradients(self: object, grads_and_vars: object, *args: Any, **kwargs: Any) -> R:
        is_plain = tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context()
        if not is_plain or splits_in_script():
            return original(self, grads_and_vars, *args, **kwargs)
        grads, variables = (
            list(each) for each in zip(*cast("Iterable[Any]", grads_and_vars), strict=True)
        )
        if notes := noted_gradients.noting():
            notes.note(self, grads, variables)
        if not computes_whole_batch():
            grads = Reduction(world.sharing().comm).apply(grads, variables)
        with timing.updating(), as_one_process(), replica_of_world():
            return original(self, list(zip(grads, variables, strict=True)), *args, **kwargs)

    return apply_gradients


def _reduce_differentiably(
    comm: Communicator,
    grads: Sequence[Gradient | None],
    variables: Sequence[FrameworkVariable],
    weight: Number,
) -> list[Gradient | None]:
    """Returns the mean by ``weight`` of dense gradients; its gradient is reduced the same way."""
    shared = {i: gradient for i, gradient in enumerate(grads) if gradient is not None}
    dense = [tf.convert_to_tensor(gradient) for gradient in shared.values()]

    @tf_internals.custom_gradient
    def mean(*tensors: tf.Tensor) -> tuple[list[Gradient], Callable[..., list[Gradient]]]:
        reduced = ops.weighted_mean(comm, list(tensors), tf.cast(weight, tf.float32))
        return reduced, lambda *dys: ops.weighted_mean(comm, list(dys), tf.cast(weight, tf.float32))

    found = dict(zip(shared, tf.nest.flatten(mean(*dense)), strict=True))
    return [found.get(i) for i in range(len(grads))]
