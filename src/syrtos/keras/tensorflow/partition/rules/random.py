"""Rules of random draws: a worker gets its rows of the numbers that one process draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.keras.tensorflow.partition import sizes
from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.registry import rule, types
from syrtos.keras.tensorflow.partition.values import RowPlacement, Value

# The input of a drawing operation that is a shape.
DRAWS = {
    **dict.fromkeys(
        types("RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt"), 0
    ),
    **dict.fromkeys(
        types(
            "StatelessRandomUniform StatelessRandomNormal StatelessTruncatedNormal"
            " StatelessRandomUniformInt StatelessRandomUniformFullInt StatelessRandomUniformV2"
            " StatelessRandomNormalV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2"
            " StatelessRandomUniformFullIntV2"
        ),
        0,
    ),
}
# Numbers that Philox makes of one count, and of which each element takes one. Truncated normal
# numbers take a varying number of them.
_SKIPPING = (
    "StatelessRandomUniformV2",
    "StatelessRandomNormalV2",
    "StatelessRandomUniformIntV2",
)
_PHILOX = (1, 3)


@rule(*DRAWS)
def draw(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The numbers of the whole batch, cut to this worker's rows."""
    shape = emitter.sizes_of(op, DRAWS[op.type], values)
    if shape is None or not shape.size:
        return None
    dims = tuple(shape.ravel())
    each = emitter.share.each_of(dims[0])
    if each and _can_skip(emitter, op, values, dims):
        return _draw_rows(emitter, op, values, dims, each)
    (tensor,) = emitter.emit(op, [emitter.whole(value) for value in values])
    return [emitter.spread(tensor, dims)]


def _can_skip(emitter: Emitter, op: tf.Operation, values: list[Value], dims: Any) -> bool:
    if op.type not in _SKIPPING or not all(value.is_replicated for value in values):
        return False
    algorithm = emitter.sizes_of(op, 3, values)
    is_philox = algorithm is not None and algorithm.item() in _PHILOX
    return is_philox and isinstance(sizes.product(dims[1:]), int) and values[2].tensor.shape == (2,)


def _draw_rows(
    emitter: Emitter, op: tf.Operation, values: list[Value], dims: Any, each: int
) -> list[Value]:
    """Draws this worker's rows alone, by a counter that has skipped those before."""
    row = sizes.product(dims[1:])
    assert isinstance(row, int)
    rows, dtype = RowPlacement(0, each), op.outputs[0].dtype
    # Salmon et al. 2011: each count of Philox gives four numbers of 32 bits, or two of 64.
    group = 2 if dtype.size == 8 else 4
    start, count = emitter.share.bounds(rows)
    first = tf.cast(start, tf.int64) * row
    skipped = first // group
    before = tf.cast(first - skipped * group, tf.int32)
    length = tf.cast(count, tf.int32) * row
    inputs = [value.tensor for value in values]
    inputs[0] = tf.cast(tf.stack([before + length]), values[0].tensor.dtype)
    inputs[2] = skip(values[2].tensor, skipped)
    (flat,) = emitter.emit(op, inputs)
    mine = tf.slice(flat, [before], [length])
    local = tf.concat([[tf.cast(count, tf.int32)], np.asarray(dims[1:], np.int32)], 0)
    return [Value(tf.reshape(mine, local), rows, dims=dims)]


def skip(counter: tf.Tensor, blocks: tf.Tensor) -> tf.Tensor:
    """Returns the counter of Philox, uint64 of shape (2,), moved on by a number of counts."""
    blocks = tf.cast(blocks, tf.uint64)
    low = counter[0] + blocks
    carry = tf.cast(low < blocks, tf.uint64)
    return tf.stack([low, counter[1] + carry])
