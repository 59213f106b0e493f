"""Comparisons of batches between workers: data shuffled with unequal seeds would differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Array, Communicator
from syrtos.keras import fitting
from syrtos.keras.datasets.checksums import COMPARE_EVERY, checksum_of
from syrtos.keras.tensorflow.rows import count_rows, has_rows

# The number of the first batch where threads decide which numbers records get, so that only rows
# are compared.
LEFT_TO_THREADS = -(1 << 30)


def compare_batches(index: tf.Tensor, data: object, comm: Communicator) -> tf.Tensor:
    """Compares a checksum of some batches (`checksums.is_compared`) over the workers.

    Returns True.
    """

    def compare(number: Array, *arrays: Array) -> Array:
        return _agree(number, checksum_of(arrays), comm)

    return _for_some(index, compare, [index, *_tensors(data)], True)


def compare_numbered(index: tf.Tensor, data: object, comm: Communicator) -> tf.Tensor:
    """Compares a checksum as `compare_batches` does. Returns True.

    Where threads decide which numbers records get, only the numbers of rows are compared.

    Args:
        index: the number of the batch, int32 scalar; from `LEFT_TO_THREADS` on where threads decide
            which numbers records get.
        data: all rows of the batch.
        comm: the workers.
    """
    tensors = _tensors(data)
    leaves = [
        leaf for leaf in tf.nest.flatten(data) if has_rows(leaf) and not isinstance(leaf, tf.Tensor)
    ]

    def compare(number: Array, *arrays: Array) -> Array:
        dense, counts = arrays[: len(tensors)], arrays[len(tensors) :]
        if number < 0:
            rows = [np.asarray(len(array)) for array in dense if array.ndim]
            return _agree(number - LEFT_TO_THREADS, checksum_of([*rows, *counts]), comm)
        return _agree(number, checksum_of(dense), comm)

    return _for_some(index, compare, [index, *tensors, *map(count_rows, leaves)], True)


def sum_of(index: tf.Tensor, data: object) -> tf.Tensor:
    """Returns a checksum of each batch that is compared, float64; 0 for the others."""

    def sum_up(*arrays: Array) -> Array:
        return np.asarray(checksum_of(arrays))

    return _for_some(index, sum_up, _tensors(data), np.float64(0.0))


def compare_sums(index: tf.Tensor, checksum: tf.Tensor, comm: Communicator) -> tf.Tensor:
    """Compares checksums over the workers like `compare_batches`; `sum_of` makes ``checksum``."""
    return _for_some(
        index, lambda number, mine: _agree(number, mine, comm), [index, checksum], True
    )


def _for_some(
    index: tf.Tensor,
    call: Callable[..., Array],
    inputs: list[tf.Tensor],
    otherwise: bool | np.float64,
) -> tf.Tensor:
    """Returns the scalar that ``call`` gives, in Python, for each batch that is compared.

    For the others it is ``otherwise``, which has the same dtype.
    """
    # In a branch, so that most batches make no call of Python.

    def rest() -> tf.Tensor:
        return tf.constant(otherwise)

    def some() -> tf.Tensor:
        return tf.ensure_shape(
            tf.numpy_function(call, inputs, tf.as_dtype(np.asarray(otherwise).dtype)), []
        )

    return tf.cond(is_compared_in_graph(index), some, rest)


def is_compared_in_graph(index: tf.Tensor) -> tf.Tensor:
    """Returns what `checksums.is_compared` does, as a tensor."""
    number = tf.bitwise.bitwise_and(index, tf.constant(-LEFT_TO_THREADS - 1, index.dtype))
    ones = tf.bitwise.bitwise_and(number, number - 1)
    return tf.logical_or(tf.equal(tf.math.floormod(number, COMPARE_EVERY), 0), tf.equal(ones, 0))


def _tensors(data: object) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(data) if isinstance(leaf, tf.Tensor)]


def _agree(number: Array, mine: Array | float, comm: Communicator) -> Array:
    # TensorFlow would show an error of its own about this one.
    with world.remembering_errors():
        fitting.check_same_data(comm.agree("compare input", float(mine)), int(number))
    return np.asarray(True)
