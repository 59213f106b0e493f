"""Lists of tensors as values: their elements put together, cut to rows, or gathered."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from syrtos.keras.tensorflow.partition.exchanges import Exchanges
from syrtos.keras.tensorflow.partition.values import RowPlacement, Value

# For operations on lists: elements of any shape.
ANY_SHAPE = -1


def stack_elements(value: Value) -> tf.Tensor:
    """Returns the elements of a list as one tensor, whose first dimension numbers them."""
    assert value.element_dtype is not None
    return tf.raw_ops.TensorListStack(
        input_handle=value.tensor,
        element_shape=tf.constant(ANY_SHAPE),
        element_dtype=value.element_dtype,
        num_elements=-1,
    )


def list_of(elements: tf.Tensor) -> tf.Tensor:
    """Returns the list of a tensor's entries along the first dimension."""
    return tf.raw_ops.TensorListFromTensor(tensor=elements, element_shape=tf.constant(ANY_SHAPE))


def gather_list(exchanges: Exchanges, value: Value, rows: RowPlacement) -> tf.Tensor:
    """Returns a list whose elements have the rows of all workers."""
    if value.is_empty_list:
        return value.tensor
    elements, dim = stack_elements(value), rows.dim + 1
    behind = tf.range(dim + 1, tf.rank(elements))
    (gathered,) = exchanges.gather([_permute(elements, [[dim], tf.range(dim), behind])])
    return list_of(_permute(gathered, [tf.range(1, dim + 1), [0], behind]))


def _permute(tensor: tf.Tensor, order: list[Any]) -> tf.Tensor:
    # The annotations of `tf.transpose` know no order that is a tensor.
    return tf.raw_ops.Transpose(x=tensor, perm=tf.concat(order, 0))
