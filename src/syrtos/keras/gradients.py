"""When and how an optimizer's gradients are reduced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Communicator, ReduceOp
from syrtos.keras import state
from syrtos.keras.backends import tensorflow as ops
from syrtos.keras.step import current_step

_MARK = "_syrtos_distributed"
_zero_edits = False
_by_tape = False


def reduce_by_tape() -> None:
    """The script's own loops reduce with a `DistributedGradientTape`: optimizers that were not asked to must not do it again."""
    global _by_tape
    _by_tape = True


def reduce_all_optimizers() -> None:
    """From now on every Keras optimizer of this process reduces: what `syrtos run` means."""
    global _zero_edits
    _zero_edits = True


def mark(optimizer: Any, comm: Communicator) -> None:
    """Makes one optimizer reduce over ``comm``, also where syrtos was not asked to reduce for all."""
    object.__setattr__(optimizer, _MARK, comm)


def is_reducing(optimizer: Any) -> bool:
    """Whether this optimizer's gradients are reduced before they are clipped."""
    return _comm(optimizer) is not None


def reduced(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
    """The gradients of the global batch, from those of this worker's share.

    In `fit` they are averaged by samples. In a custom loop with `strategy.run` they are summed, as `tf.distribute` defines; in
    any other loop they are averaged over workers.
    """
    comm = _comm(optimizer)
    if comm is None or comm.size == 1:
        return list(grads)
    step = current_step()
    weighed = step is not None and _accumulates(optimizer)  # by `to_accumulate`
    weight = tf.constant(1.0) if step is None or weighed else step.samples
    mean = ops.weighted_mean(comm, grads, weight, _adds_rows(optimizer))
    summed = weighed or (step is None and _in_strategy_run())
    return [_times(g, comm.size) for g in mean] if summed else mean


def to_accumulate(optimizer: Any, grads: Sequence[Any]) -> Sequence[Any]:
    """This worker's part of a step's gradients, if several steps are accumulated before they are reduced."""
    comm, step = _comm(optimizer), current_step()
    if comm is None or comm.size == 1 or step is None or not _accumulates(optimizer):
        return grads
    part = tf.where(step.active, step.fraction(), 0.0)
    return [_times(_or_zero(g, step.active), tf.cast(part, g.dtype)) if g is not None else None for g in grads]


def _accumulates(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "gradient_accumulation_steps", None))


def _or_zero(gradient: Any, active: tf.Tensor) -> Any:
    """A worker without samples adds nothing, whatever its gradients hold."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.where(active, gradient.values, tf.zeros_like(gradient.values))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.where(active, gradient, tf.zeros_like(gradient))


def finite_everywhere(optimizer: Any, finite: tf.Tensor) -> tf.Tensor:
    """Whether all workers that have samples found their gradients finite."""
    comm = _comm(optimizer)
    if comm is None or comm.size == 1:
        return finite
    step = current_step()
    if step is not None:
        finite = tf.logical_or(finite, tf.logical_not(step.active))
    return ops.allreduce(comm, tf.cast(finite, tf.int32), ReduceOp.MIN) > 0


def broadcast_at_build(optimizer: Any, variables: Iterable[Any]) -> None:
    """Gives all workers rank 0's weights before the optimizer's first step."""
    comm = _comm(optimizer)
    if comm is None or comm.size == 1:
        return
    with tf.init_scope():
        if tf.executing_eagerly():
            state.broadcast(comm, [*variables, *optimizer.variables])


def _comm(optimizer: Any) -> Communicator | None:
    marked = getattr(optimizer, _MARK, None)
    if marked is not None:
        return marked
    if not _zero_edits or (_by_tape and current_step() is None):
        return None
    return world.current().comm


def _in_strategy_run() -> bool:
    context = tf.distribute.get_replica_context()
    return context is not None and context.strategy.num_replicas_in_sync > 1


def _adds_rows(optimizer: Any) -> bool:
    """Whether a row that is listed twice gets the sum of both values: only plain gradient descent does that. The others square or
    clip each value by itself (seen in Keras 3.15)."""
    clips = any(getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    return any(base.__name__ == "SGD" for base in type(optimizer).__mro__) and not clips


def _times(gradient: Any, factor: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor
