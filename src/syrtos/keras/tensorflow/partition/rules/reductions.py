"""Rules of reductions, and of operations along one dimension."""

from __future__ import annotations

import tensorflow as tf

from syrtos.comm.arrays import ReduceOp
from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.moments import moments_of_rows, variance_after
from syrtos.keras.tensorflow.partition.rules.registry import rule
from syrtos.keras.tensorflow.partition.values import Partial, RowPlacement, Value

_OPS = {
    "Sum": ReduceOp.SUM,
    "Mean": ReduceOp.SUM,
    "Prod": ReduceOp.PRODUCT,
    "Max": ReduceOp.MAX,
    "Min": ReduceOp.MIN,
    "All": ReduceOp.MIN,
    "Any": ReduceOp.MAX,
}


@rule(*_OPS, takes_partial=True)
def reduction(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Reduced rows give a partial value; other dimensions leave rows as they are."""
    value, rank = values[0], values[0].rank
    axes = emitter.sizes_of(op, 1, values)
    if rank is None or axes is None or any(not isinstance(a, int) for a in axes.ravel()):
        return None
    if value.is_partial:
        if op.type == "Sum" and value.placement == Partial():
            return emitter.emit_as(op, values, Partial())
        return None
    reduced = {axis % rank for axis in axes.ravel()}
    rows = value.rows
    if rows is None:
        return None
    if op in emitter.variances:
        return [emitter.variances.pop(op)]
    if rows.dim not in reduced:
        before = 0 if op.get_attr("keep_dims") else sum(a < rows.dim for a in reduced)
        return emitter.emit_as(op, values, RowPlacement(rows.dim - before, rows.each))
    if op.type == "Mean":
        return _mean(emitter, op, values, sorted(reduced), rows)
    if value.tensor.dtype.is_complex and op.type != "Sum":
        return None
    return emitter.emit_as(op, values, Partial(_OPS[op.type]))


def _mean(
    emitter: Emitter, op: tf.Operation, values: list[Value], axes: list[int], rows: RowPlacement
) -> list[Value] | None:
    """Divides this worker's sum by the number of all entries."""
    tensor = values[0].tensor
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return None
    count = tf.cast(emitter.share.total * rows.each, tf.float64)
    sizes, keeps = tf.shape(tensor), op.get_attr("keep_dims")
    for axis in axes:
        if axis != rows.dim:
            count *= tf.cast(sizes[axis], tf.float64)
    variance = variance_after(op) if tensor.dtype in (tf.float32, tf.float64) else None
    if variance is not None:
        mean, other = moments_of_rows(emitter, tensor, axes, count)
        emitter.variances[variance] = Value(other)
        return [Value(mean)]
    # The sum of many rows is out of the range of 16 bits where their mean is not.
    wide = tf.cast(tensor, tf.float32) if tensor.dtype == tf.float16 else tensor
    summed = tf.reduce_sum(wide, axes, keepdims=keeps)
    return [Value(tf.cast(_divide(summed, count), tensor.dtype), Partial())]


def _divide(tensor: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    # 16 bits do not hold a count above 2048: it divides in 32.
    if tensor.dtype.size == 2:
        return tf.cast(tf.cast(tensor, tf.float32) / tf.cast(count, tf.float32), tensor.dtype)
    return tensor / tf.cast(count, tensor.dtype)


@rule("ArgMax", "ArgMin")
def arg_extreme(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The place of an extreme is found within each row."""
    rows, axis = values[0].rows, emitter.axis(op, 1, values, values[0].rank)
    if rows is None or axis is None or axis == rows.dim:
        return None
    return emitter.emit_as(op, values, RowPlacement(rows.dim - (axis < rows.dim), rows.each))


@rule("Cumsum", "Cumprod", "CumulativeLogsumexp")
def cumulative(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """A running sum within each row."""
    rows, axis = values[0].rows, emitter.axis(op, 1, values, values[0].rank)
    if rows is None or axis is None or axis == rows.dim:
        return None
    return emitter.emit_as(op, values, rows)


@rule("L2Loss", takes_partial=False)
def l2_loss(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Half the sum of squares is a partial sum."""
    return emitter.emit_as(op, values, Partial()) if values[0].rows else None


@rule("BiasAddGrad")
def bias_gradient(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The sum over all dimensions but the channels."""
    rows, rank = values[0].rows, values[0].rank
    if rows is None or rank is None:
        return None
    channels = rank - 1 if op.get_attr("data_format") == b"NHWC" else 1
    return emitter.emit_as(op, values, Partial()) if rows.dim != channels else None
