"""Gathers the rows of a batch of whose rows each worker has a share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from syrtos.comm.communicator import Array, Communicator
from syrtos.keras.tensorflow import ops
from syrtos.keras.tensorflow.rows import ragged_rows

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.types import Tree


def rows_of_all(comm: Communicator, active: tf.Tensor, tree: Tree) -> Tree:
    """Returns the structure with the rows of all workers, in order, in the place of this worker's.

    Args:
        comm: the workers. All call this together.
        active: Boolean scalar: whether this worker has rows; else it has one that does not count.
        tree: tensors, ragged and sparse tensors. Scalars, and what is no tensor, stay as they are.

    Returns:
        Tensors of unknown numbers of rows; the rest of their shapes stays.
    """

    def of_all(leaf: Any) -> object:
        if isinstance(leaf, tf.RaggedTensor):
            lengths = [_gather_rows(comm, active, level) for level in leaf.nested_row_lengths()]
            return ragged_rows(_gather_rows(comm, active, leaf.flat_values), lengths)
        if isinstance(leaf, tf.SparseTensor):
            return _sparse_of_all(comm, active, leaf)
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
            return leaf
        return _gather_rows(comm, active, leaf)

    return tf.nest.map_structure(of_all, tree)


def _sparse_of_all(
    comm: Communicator, active: tf.Tensor, tensor: tf.SparseTensor
) -> tf.SparseTensor:
    """Gathers sparse tensors; the indices of their rows go on from those of the workers before."""
    rows = tf.where(active, tensor.dense_shape[0], 0)
    counts = ops.allgather(comm, tf.reshape(rows, [1]))
    before = tf.reduce_sum(counts[: comm.rank])
    kept = tf.where(active, tf.shape(tensor.indices)[0], 0)
    moved = tensor.indices + tf.concat([[before], tf.zeros_like(tensor.dense_shape[1:])], 0)
    indices, values = (ops.allgather(comm, part[:kept]) for part in (moved, tensor.values))
    return tf.SparseTensor(
        indices, values, tf.concat([[tf.reduce_sum(counts)], tensor.dense_shape[1:]], 0)
    )


def _gather_rows(comm: Communicator, active: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the rows of all workers that have some."""

    def gather(rows: Array, active: Array) -> Array:
        mine = rows if active else rows[:0]
        if rows.dtype != object:
            return comm.allgather(mine)
        everyone = comm.allgather_object(mine.tolist())  # strings
        return np.asarray([row for part in everyone for row in part], object).reshape(
            -1, *rows.shape[1:]
        )

    (result,) = ops.exchange(lambda *given: [gather(*given)], [tensor, active], [tensor.dtype])
    result.set_shape([None, *tensor.shape[1:]])
    return result
