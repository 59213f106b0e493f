"""Gathers, differentiably, the rows that all workers have computed in a step on their shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from syrtos.comm.communicator import Array
from syrtos.keras.tensorflow import ops, tf_internals
from syrtos.keras.tensorflow.rows import ragged_rows

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.step import TensorFlowStep
    from syrtos.keras.tensorflow.types import Tree

_MASK = "_keras_mask"  # where Keras 3 and Keras 2 keep a tensor's mask


def rows_of_all(step: TensorFlowStep, tree: Tree) -> Tree:
    """Returns the structure with the rows of all workers, in order, in the place of this worker's.

    Args:
        step: the step on this worker's share.
        tree: tensors, arrays, ragged and sparse tensors, None and Python's numbers, which stay as
            they are.

    Returns:
        Floating scalars become their mean by samples, whole numbers their sum. The rest of a
        tensor's shape stays.
    """
    return tf.nest.map_structure(lambda leaf: _of_all(step, leaf), tree)


# A script's model may return anything.
def _of_all(step: TensorFlowStep, leaf: Any) -> object:
    if isinstance(leaf, tf.RaggedTensor):
        lengths = [_gather_rows(step, level) for level in leaf.nested_row_lengths()]
        return ragged_rows(_gather_rows(step, leaf.flat_values), lengths)
    if isinstance(leaf, tf.SparseTensor):
        return _sparse_of_all(step, leaf)
    if not isinstance(leaf, tf.Tensor | tf.Variable | np.ndarray) and not hasattr(
        leaf, "__tf_tensor__"
    ):
        return leaf
    tensor = tf.convert_to_tensor(leaf)
    if tensor.shape.rank == 0:
        return _of_scalars(step, tensor)
    result = _gather_rows(step, tensor)
    mask = getattr(leaf, _MASK, None)
    if mask is not None:
        setattr(result, _MASK, _gather_rows(step, tf.convert_to_tensor(mask)))
    return result


def _of_scalars(step: TensorFlowStep, value: tf.Tensor) -> tf.Tensor:
    """Returns the whole batch's scalar: the mean by samples of floats, the sum of whole numbers."""
    if value.dtype.is_floating:
        part = tf.where(step.active, value * tf.cast(step.fraction(), value.dtype), 0)
        return tf.ensure_shape(ops.allreduce(step.session.comm, part), [])
    if value.dtype.is_integer:
        return tf.ensure_shape(
            ops.allreduce(step.session.comm, tf.where(step.active, value, 0)), []
        )
    return value


def _sparse_of_all(step: TensorFlowStep, tensor: tf.SparseTensor) -> tf.SparseTensor:
    """Gathers sparse tensors; the indices of their rows go on from those of the workers before."""
    rows = tf.where(step.active, tensor.dense_shape[0], 0)
    counts = ops.allgather(step.session.comm, tf.reshape(rows, [1]))
    before = tf.reduce_sum(counts[: step.session.comm.rank])
    kept = tf.where(step.active, tf.shape(tensor.indices)[0], 0)
    moved = tensor.indices + tf.concat([[before], tf.zeros_like(tensor.dense_shape[1:])], 0)
    indices, values = (
        ops.allgather(step.session.comm, part[:kept]) for part in (moved, tensor.values)
    )
    return tf.SparseTensor(
        indices, values, tf.concat([[tf.reduce_sum(counts)], tensor.dense_shape[1:]], 0)
    )


def _gather_rows(step: TensorFlowStep, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the rows of all workers that have samples."""
    comm = step.session.comm

    def gather(rows: Array, active: Array) -> list[Array]:
        mine = rows if active else rows[:0]
        if rows.dtype == object:  # strings
            everyone = comm.allgather_object(mine.tolist())
            found = np.asarray([row for part in everyone for row in part], object).reshape(
                -1, *rows.shape[1:]
            )
            return [found, np.asarray(sum(map(len, everyone[: comm.rank])), np.int64)]
        counts = comm.agree("rows of each worker", float(len(mine)))
        return [comm.allgather(mine), np.asarray(sum(counts[: comm.rank]), np.int64)]

    @tf_internals.custom_gradient
    def forward(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        result, start = ops.exchange(gather, [x, step.active], [x.dtype, tf.int64])
        result.set_shape([None, *x.shape[1:]])

        # In a step this worker's gradients will count by its part of the samples. The gradients
        # that come back here are complete already, so they are divided by that part.
        def backward(dy: tf.Tensor) -> tf.Tensor:
            rows = tf.where(step.active, tf.shape(x, tf.int64)[0], 0)
            own = dy[start : start + rows] / tf.cast(step.fraction(), dy.dtype)
            return tf.cond(step.active, lambda: own, lambda: tf.zeros_like(x))

        return result, backward

    return forward(tensor)
