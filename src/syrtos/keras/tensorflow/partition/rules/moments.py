"""Mean and variance over rows in one exchange.

A variance is taken about the mean, so by themselves the two are exchanged one after the other.
Here workers add up their sums, and the squares about their own means with what these differ: Chan,
Golub, LeVeque, "Algorithms for Computing the Sample Variance" (1983), formula 2.1, in 64 bits, in
which the difference of two large numbers is exact enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.values import Partial, Value


def moments_of_rows(
    emitter: Emitter, x: tf.Tensor, axes: Sequence[int], count: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance of all workers' rows, in the dtype of ``x``, with dimensions kept.

    Args:
        emitter: the workers. All call this together.
        x: this worker's rows, of 32 or 64 bits.
        axes: the dimensions over which they are taken, that of the rows among them.
        count: how many numbers all rows have there, float64.
    """
    own = tf.reduce_mean(x, axes, keepdims=True)
    about_own = tf.reduce_sum(tf.math.squared_difference(x, own), axes, keepdims=True)
    rows = tf.cast(tf.size(x) / tf.maximum(tf.size(own), 1), tf.float64)
    wide = tf.cast(own, tf.float64)
    squares = tf.cast(about_own, tf.float64) + rows * wide * wide
    sums = [Value(rows * wide, Partial()), Value(squares, Partial())]
    emitter.reduce_due(sums)
    mean, square = (value.tensor / count for value in sums)
    variance = square - mean * mean
    # not by `maximum`, which makes 0 of NaN
    variance = tf.where(variance < 0, tf.zeros_like(variance), variance)
    return tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)


def variance_after(mean: tf.Operation) -> tf.Operation | None:
    """Returns the operation that takes the variance about a mean, as `tf.nn.moments` has it."""
    x, axes = mean.inputs
    for stopped in _consumers(mean, "StopGradient"):
        for square in _consumers(stopped, "SquaredDifference"):
            if not any(tensor is x for tensor in square.inputs):
                continue
            for found in _consumers(square, "Mean"):
                other = tf.get_static_value(found.inputs[1])
                mine = tf.get_static_value(axes)
                alike = found.get_attr("keep_dims") == mean.get_attr("keep_dims")
                if alike and mine is not None and other is not None and list(mine) == list(other):
                    return found
    return None


def _consumers(operation: tf.Operation, kind: str) -> list[tf.Operation]:
    return [found for found in operation.outputs[0].consumers() if found.type == kind]
