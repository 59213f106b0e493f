"""Rows of the tensors of a batch: dense, sparse and ragged ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import tensorflow as tf

from syrtos.comm.communicator import share_of

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.types import BatchLeaf

    # The number of a row: an int, or an int64 scalar.
    Index = int | tf.Tensor

Leaf = TypeVar("Leaf")
RowsT = TypeVar("RowsT", tf.Tensor, tf.SparseTensor, tf.RaggedTensor)


# The number of the part is a tensor, as which the annotations of `share_of` do not know it.
def part_of_rows(leaf: Leaf, part: Any, parts: int) -> Leaf:
    """Returns one of ``parts`` equal parts of a tensor's rows, or a leaf without rows as it is.

    Args:
        leaf: a dense, sparse or ragged tensor.
        part: the number of the part, int64 scalar.
        parts: how many there are.
    """
    if not has_rows(leaf):
        return leaf
    # A placeholder hides the number: TensorFlow would make it part of the part's static shape.
    total = tf.compat.v1.placeholder_with_default(tf.cast(count_rows(leaf), tf.int64), [])
    return slice_rows(leaf, *share_of(total, part, parts))


def first_rows(leaf: RowsT, count: tf.Tensor) -> RowsT:
    """Returns the first ``count`` rows, an int64 scalar."""
    return slice_rows(leaf, tf.constant(0, tf.int64), count)


def slice_rows(leaf: RowsT, start: Index, stop: Index) -> RowsT:
    """Returns the rows from ``start`` on, without ``stop``."""
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[start:stop]
    rest = leaf.dense_shape[1:]
    part = tf.sparse.slice(
        leaf, tf.concat([[start], tf.zeros_like(rest)], 0), tf.concat([[stop - start], rest], 0)
    )
    # Slicing forgets the shape, and layers are built from it.
    part.set_shape([None, *leaf.shape[1:]])
    return part


def has_rows(leaf: object) -> TypeGuard[BatchLeaf]:
    """Returns whether the first dimension of a leaf of a batch counts samples."""
    return isinstance(leaf, tf.Tensor | tf.SparseTensor | tf.RaggedTensor) and leaf.shape.rank != 0


def count_rows(leaf: BatchLeaf) -> tf.Tensor:
    """Returns the number of rows of a dense, sparse or ragged tensor."""
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return leaf.nrows() if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0]


def ragged_rows(values: tf.Tensor, lengths: Sequence[tf.Tensor]) -> tf.RaggedTensor:
    """Returns a ragged tensor of flat values, and the lengths of the rows of each level."""
    ragged: Any = tf.RaggedTensor  # whose stub lacks the constructors
    return ragged.from_nested_row_lengths(values, lengths, validate=False)
