"""Mean and variance over rows in one exchange.

A variance is taken about the mean, so by themselves the two are exchanged one after the other.
Here workers exchange their own counts, means and squares about these: Chan, Golub, LeVeque,
"Algorithms for Computing the Sample Variance" (1983), formula 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from syrtos.keras.tensorflow.partition.emitter import Emitter


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
    flat = [tf.reshape(tf.cast(each, tf.float64), [-1]) for each in (rows, own, about_own)]
    emitter.report.reductions += 1
    (everyone,) = emitter.exchanges.gather([tf.concat(flat, 0)[tf.newaxis]])
    everyone = tf.reshape(everyone, [emitter.exchanges.size, -1])
    counts, (means, squares) = everyone[:, :1], tf.split(everyone[:, 1:], 2, 1)
    mean = tf.reduce_sum(counts * means, 0) / count
    square = tf.reduce_sum(squares + counts * tf.math.squared_difference(means, mean), 0)
    found = (tf.cast(tf.reshape(each, tf.shape(own)), x.dtype) for each in (mean, square / count))
    return next(found), next(found)


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
                # else a mean may be broadcast along other dimensions than its own
                kept = found.get_attr("keep_dims") and mean.get_attr("keep_dims")
                if kept and mine is not None and other is not None and list(mine) == list(other):
                    return found
    return None


def _consumers(operation: tf.Operation, kind: str) -> list[tf.Operation]:
    return [found for found in operation.outputs[0].consumers() if found.type == kind]
