"""Rules of batch normalization as one operation, which Keras 2 has for images.

Formulas: Ioffe and Szegedy 2015 (arXiv:1502.03167), algorithm 1 and section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.moments import moments_of_rows
from syrtos.keras.tensorflow.partition.rules.registry import rule
from syrtos.keras.tensorflow.partition.values import Partial, RowPlacement, Value

_ROWS = RowPlacement(0)


@rule("FusedBatchNormV3")
def fused_batch_norm(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Mean and variance are those of all rows; each row is normalized by them."""
    images, scale, offset = values[:3]
    if images.rows != _ROWS or not all(value.is_replicated for value in values[1:]):
        return None
    if not op.get_attr("is_training"):
        outputs = emitter.emit(op, [value.tensor for value in values])
        return [Value(outputs[0], _ROWS), *(Value(output) for output in outputs[1:])]
    if op.get_attr("exponential_avg_factor") != 1.0 or _channels(op) is None:
        return None
    x = tf.cast(images.tensor, tf.float32)
    count = _count(emitter, x, op)
    mean, variance = (
        tf.reshape(each, [-1]) for each in moments_of_rows(emitter, x, _axes(op), count)
    )
    factor = scale.tensor * tf.math.rsqrt(variance + op.get_attr("epsilon"))
    y = (x - _wide(op, mean)) * _wide(op, factor) + _wide(op, offset.tensor)
    count = tf.cast(count, tf.float32)
    # TensorFlow's kernel gives the moving statistics the unbiased variance, and the gradient the
    # other one.
    unbiased = variance * (count / tf.maximum(count - 1.0, 1.0))
    kept = [mean, unbiased, mean, variance, tf.zeros([0], tf.float32)]
    return [Value(tf.cast(y, images.tensor.dtype), _ROWS), *map(Value, kept)]


@rule("FusedBatchNormGradV3")
def fused_batch_norm_gradient(
    emitter: Emitter, op: tf.Operation, values: list[Value]
) -> list[Value] | None:
    """The gradients of scale and offset are sums over all rows, on which that of the images depends."""
    backprop, images, scale, mean, variance = values[:5]
    if images.rows != _ROWS or backprop.rows != _ROWS or _channels(op) is None:
        return None
    if not all(value.is_replicated for value in values[2:]):
        return None
    dy, x = (tf.cast(value.tensor, tf.float32) for value in (backprop, images))
    deviation = tf.math.rsqrt(variance.tensor + op.get_attr("epsilon"))
    normal = (x - _wide(op, mean.tensor)) * _wide(op, deviation)
    sums = [Value(_sum(op, each), Partial()) for each in (dy * normal, dy)]
    emitter.reduce_due(sums)
    of_scale, of_offset = (value.tensor for value in sums)
    dx = dy
    if op.get_attr("is_training"):
        count = tf.cast(_count(emitter, x, op), tf.float32)
        dx = dy - _wide(op, of_offset / count) - normal * _wide(op, of_scale / count)
    dx *= _wide(op, scale.tensor * deviation)
    found = [of_scale, of_offset, *(tf.zeros([0], tf.float32) for _ in range(2))]
    return [Value(tf.cast(dx, images.tensor.dtype), _ROWS), *map(Value, found)]


def _channels(op: tf.Operation) -> int | None:
    """Returns the dimension of the channels of images of rank 4; None for another layout."""
    return {b"NHWC": 3, b"NCHW": 1}.get(op.get_attr("data_format"))


def _axes(op: tf.Operation) -> Sequence[int]:
    return [axis for axis in range(4) if axis != _channels(op)]


def _sum(op: tf.Operation, tensor: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tensor, _axes(op))


def _wide(op: tf.Operation, vector: tf.Tensor) -> tf.Tensor:
    """Returns a number for each channel in the shape in which images are multiplied by it."""
    sizes = [1, 1, 1, 1]
    channels = _channels(op)
    assert channels is not None
    sizes[channels] = -1
    return tf.reshape(vector, sizes)


def _count(emitter: Emitter, x: tf.Tensor, op: tf.Operation) -> tf.Tensor:
    """Returns how many numbers of all rows a channel has, float64."""
    shape = tf.shape(x)
    rest = [shape[axis] for axis in _axes(op) if axis]
    sizes = [tf.cast(size, tf.float64) for size in (emitter.share.total, *rest)]
    return tf.reduce_prod(tf.stack(sizes))
