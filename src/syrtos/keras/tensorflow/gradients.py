"""The reduction of an optimizer's or a tape's gradients over workers: when, and by which rule.

The rules themselves are in `reduction`; gradients that a step of the script's own looks at in
`script_gradients`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import tensorflow as tf

from syrtos.api import unconverted
from syrtos.comm import world
from syrtos.comm.communicator import ReduceOp
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.errors import ConfigurationError
from syrtos.keras import keras_internals, updates
from syrtos.keras.features import registry, sharding
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import ops, tf_internals_graphs
from syrtos.keras.tensorflow.assignments import computes_whole_batch, current_step
from syrtos.keras.tensorflow.reduction import Reduction, times
from syrtos.keras.updates import AskedReductions
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import FrameworkVariable, Optimizer, Variable
    from syrtos.keras.tensorflow.types import Gradient, GradientLike, Number
    from syrtos.keras.updates import Update


class ReducingTape:
    """A `tf.GradientTape` whose gradients are reduced over the workers."""

    def __init__(self, tape: tf.GradientTape, reduction: Reduction) -> None:
        """Wraps a tape that has recorded, or will."""
        self._tape = tape
        self._reduction = reduction

    def __enter__(self) -> Self:
        self._tape.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tape.__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> Any:  # a method of the tape
        return getattr(self._tape, name)

    # TensorFlow's annotations of `GradientTape.gradient` know fewer structures than it takes:
    # sources and targets are passed on.
    @unconverted
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None) -> Any:
        """Returns the reduced gradients of ``target``, in the structure of ``sources``.

        None stands for a source without a gradient.
        """
        return self.weighted_gradient(target, sources, output_gradients, 1.0)

    @unconverted
    def weighted_gradient(
        self, target: Any, sources: Any, output_gradients: Any, weight: Number
    ) -> Any:
        """Returns the gradients as `gradient` does; in a mean this worker's count by ``weight``.

        Such a weight is e.g. the number of the worker's samples.
        """
        grads = self._tape.gradient(target, sources, output_gradients)
        if not isinstance(sources, list | tuple | dict):
            return self._reduction.apply([grads], [sources], weight)[0]
        reduced = self._reduction.apply(tf.nest.flatten(grads), tf.nest.flatten(sources), weight)
        return tf.nest.pack_sequence_as(sources, reduced)


def reduce_by_tape() -> None:
    """Notes that the script's own loops reduce with a `DistributedGradientTape`."""
    # In such loops only optimizers that were asked to reduce do so: others would reduce a second
    # time.
    world.part(AskedReductions).by_tape = True


def reduce_all_optimizers() -> None:
    """Makes every Keras optimizer of this process reduce from now on, as `syrtos run` wants it."""
    world.part(AskedReductions).all_optimizers = True


def are_reduced() -> bool:
    """Returns whether an optimizer gets gradients that are those of the global batch already.

    That is so where they were reduced when they were made, or where each worker computes the whole
    batch.
    """
    step = current_step()
    return computes_whole_batch() or (step is not None and step.reduces_early)


def reduction_of(optimizer: object) -> Reduction | None:
    """Returns the rule that reduces this optimizer's gradients before they are clipped, or None."""
    if are_reduced():
        return None
    # Gradients that `reduce_for_script` has returned are complete: a reduction by one worker keeps
    # them.
    record = record_of(optimizer, updates.OptimizerRecord)
    if record.computed and record.computed():
        return Reduction(InProcessCommunicator())
    if record.reduction is not None:
        return cast("Reduction", record.reduction)
    session = world.current()
    asked = session.part(AskedReductions)
    by_tape = asked.by_tape and current_step() is None
    if not asked.all_optimizers or world.sharing() is not session or by_tape:
        return None
    return None if registry.trains_apart() else Reduction(session.comm)


def begin_update(update: Update, variables: Iterable[FrameworkVariable]) -> None:
    """Begins an update: finds the rule of its optimizer, which starts equal on all workers.

    ``variables``: all that the optimizer trains, also those that have no gradient in this step.
    """
    broadcast_before_first(update.optimizer, variables)
    update.reduction = reduction_of(update.optimizer)


def reduce_gradients(
    optimizer: Optimizer, grads: Sequence[Gradient | None], lend: bool = True
) -> list[Gradient | None]:
    """Returns the gradients of the global batch, from those of this worker's share.

    In `fit` they are averaged by samples. In a custom loop with `strategy.run` they are summed, as
    `tf.distribute` defines; in any other loop they are averaged over workers, or reduced as the
    optimizer was asked to. ``lend`` says that nobody but the optimizer uses them: see
    `ops.weighted_mean`.
    """
    update = updates.update_of(optimizer)
    results = grads
    if not update.is_reduced and grads:
        update.reduction = reduction_of(optimizer)
        results = registry.check_gradients(update, exchange(update, grads, lend), grads)
    return list(results if update.is_for_script else registry.change_gradients(update, results))


def exchange(
    update: Update, grads: Sequence[GradientLike], lend: bool = True
) -> list[Gradient | None]:
    """Returns the gradients of an update, reduced by its rule; as they are where it has none."""
    optimizer = cast("Optimizer", update.optimizer)
    reduction, step = cast("Reduction | None", update.reduction), current_step()
    update.gives_parts = False
    if reduction is None:
        return cast("list[Gradient | None]", list(grads))
    _check_computed(optimizer, reduction)
    # Accumulated gradients have been weighed when they were added up, by `to_accumulate`.
    weighed = step is not None and updates.accumulates(optimizer)
    weight = 1.0 if step is None or weighed else step.samples
    if weighed or (step is None and in_strategy_run()):
        reduction = dataclasses.replace(reduction, op=ReduceOp.SUM)
    lends = lend and reduction.compression is None and not registry.changes_gradients()
    if lends and _takes_no_slices(optimizer):
        rows = any(isinstance(gradient, tf.IndexedSlices) for gradient in grads)
        bounds = sharding.bounds_between_hosts(optimizer, update.variables, rows)
        update.gives_parts = bool(bounds)
        reduction = dataclasses.replace(reduction, lend=True, bounds=bounds)
    return reduction.apply(grads, update.variables, weight, _adds_rows(optimizer))


def apply_if_rows(
    update: Update,
    grads: Sequence[Gradient | None],
    apply: Callable[[Sequence[Gradient | None]], None],
) -> None:
    """Calls ``apply``, except on a worker that has no sample of a small batch."""
    step, optimizer = current_step(), cast("Optimizer", update.optimizer)
    if step is None:
        apply(grads)
    else:
        leave_out = functools.partial(keras_internals.count_no_update, optimizer)
        tf.cond(step.active, lambda: apply(grads), leave_out)


def reduce_for_script(
    optimizer: Optimizer, grads: Sequence[Gradient | None], variables: Sequence[Variable]
) -> list[Gradient | None]:
    """Reduces gradients for a script that looks at them, or clips them, before it applies them.

    The next update takes them as they are.
    """
    forget_computed(optimizer)
    with updates.update(optimizer, variables) as update:
        begin_update(update, variables)
        update.is_for_script = True
        # Not lent: operations of the script may write to slices of what they are given.
        results = reduce_gradients(optimizer, to_accumulate(optimizer, grads), lend=False)
    record_of(optimizer, updates.OptimizerRecord).computed = tf_internals_graphs.same_function()
    return results


def forget_computed(optimizer: object) -> None:
    """Makes the next update reduce its gradients again."""
    record_of(optimizer, updates.OptimizerRecord).computed = None


def _check_computed(optimizer: object, reduction: Reduction) -> None:
    """Refuses a second reduction of computed gradients that would change them.

    Raises:
        ConfigurationError: gradients that one function computed would be summed or scaled again by
            another.
    """
    same_function = read_record(optimizer, updates.OptimizerRecord).computed
    if same_function is None:
        return
    forget_computed(optimizer)
    # A mean of equal gradients is the same gradient; a second sum is not.
    repeatable = reduction.op is ReduceOp.MEAN and reduction.factor == 1.0 and not reduction.local
    if not same_function() and not repeatable:
        raise ConfigurationError(
            "Gradients of `optimizer.compute_gradients` are reduced; the optimizer can't know them"
            " again in another `tf.function`, and would sum or scale them twice. Call"
            " `compute_gradients` and `apply_gradients` in one function, or both outside of"
            " functions."
        )


def sum_of_means(size: int) -> float:
    """Returns the number by which a mean over ``size`` workers is multiplied outside of `fit`.

    It is ``size`` in a loop with `strategy.run`, which sums, as `tf.distribute` defines; else 1.
    """
    return float(size) if in_strategy_run() else 1.0


def to_accumulate(optimizer: object, grads: Sequence[Gradient | None]) -> Sequence[Gradient | None]:
    """Returns this worker's part of gradients that are accumulated over steps before reduction.

    Other gradients are returned as they are.
    """
    reduction, step = reduction_of(optimizer), current_step()
    if (
        reduction is None
        or reduction.comm.size == 1
        or step is None
        or not updates.accumulates(optimizer)
    ):
        return grads
    part = tf.where(step.active, step.fraction(), 0.0)
    return [
        times(_or_zero(g, step.active), tf.cast(part, g.dtype)) if g is not None else None
        for g in grads
    ]


def _or_zero(gradient: Gradient, active: tf.Tensor) -> Gradient:
    """Returns the gradient, or zeros on a worker without samples, whatever its gradient holds."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.where(active, gradient.values, tf.zeros_like(gradient.values))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.where(active, gradient, tf.zeros_like(gradient))


def finite_everywhere(optimizer: object, finite: tf.Tensor) -> tf.Tensor:
    """Returns whether all workers with samples found their gradients finite, a Boolean scalar."""
    reduction = reduction_of(optimizer)
    if reduction is None or reduction.comm.size == 1:
        return finite
    step = current_step()
    if step is not None:
        finite = tf.logical_or(finite, tf.logical_not(step.active))
    # The infinite ones are summed, and not the finite ones: a worker that has joined adds nothing.
    infinite = tf.cast(tf.logical_not(finite), tf.int32)
    return ops.allreduce(reduction.comm, infinite) == 0


def broadcast_before_first(optimizer: object, variables: Iterable[FrameworkVariable]) -> None:
    """Broadcasts rank 0's weights and optimizer state, once, before the optimizer's first step."""
    reduction = Reduction(world.current().comm) if are_reduced() else reduction_of(optimizer)
    record = record_of(optimizer, updates.OptimizerRecord)
    if reduction is None or reduction.comm.size == 1 or record.is_equal:
        return
    # Outside of the function that is being traced, so once. In a graph of TensorFlow 1 there is no
    # outside.
    with tf.init_scope():
        if tf.executing_eagerly():
            record.is_equal = True
            found = [*variables, *state.of_optimizer(cast("Optimizer", optimizer))]
            state.broadcast(
                reduction.comm, [v for v in found if state.identity(v) not in reduction.local]
            )


def in_strategy_run() -> bool:
    """Returns whether this code runs inside `strategy.run` of several workers.

    There `tf.distribute` sums what replicas have computed.
    """
    context = tf.distribute.get_replica_context()
    return context is not None and context.strategy.num_replicas_in_sync > 1


def _takes_no_slices(optimizer: object) -> bool:
    """Returns whether the optimizer only reads a gradient on its way into the variables.

    See `ops.weighted_mean`.
    """
    # Keras's own optimizers that treat each number by itself do so (seen in 3.15.1).
    return type(optimizer).__name__ in keras_internals.ELEMENTWISE and type(
        optimizer
    ).__module__.startswith("keras.")


def _adds_rows(optimizer: object) -> bool:
    """Returns whether the optimizer adds both values of a row that is listed twice."""
    # Only plain gradient descent does. The others square or clip each value by itself (seen in
    # Keras 3.15).
    clips = any(
        getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue")
    )
    return any(base.__name__ == "SGD" for base in type(optimizer).__mro__) and not clips
