"""Rules of random draws: a worker gets its rows of the numbers that one process draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.keras.tensorflow.partition import sizes
from syrtos.keras.tensorflow.partition.draw_counters import (
    PHILOX,
    STATELESS,
    DrawCounter,
    draw_stateless,
)
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
_PHILOX = (PHILOX, 3)
# Draws numbers, given a shape and the counter to begin at.
_Draw = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@rule(*DRAWS)
def draw(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The numbers of the whole batch, cut to this worker's rows."""
    shape = emitter.sizes_of(op, DRAWS[op.type], values)
    if shape is None or not shape.size:
        return None
    dims = tuple(shape.ravel())
    each = emitter.share.each_of(dims[0])
    if emitter.counters and (generator := emitter.counters.of(op)):
        return [_draw_counted(emitter, op, values, dims, generator)]
    if each and _can_skip(emitter, op, values, dims):
        inputs = [value.tensor for value in values]

        def make(shape: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
            shape = tf.cast(shape, inputs[0].dtype)
            return emitter.emit(op, [shape, inputs[1], counter, *inputs[3:]])[0]

        return [_draw_rows(emitter, make, inputs[2], op.outputs[0].dtype, dims, each)]
    (tensor,) = emitter.emit(op, [emitter.whole(value) for value in values])
    return [emitter.spread(tensor, dims)]


def _draw_counted(
    emitter: Emitter, op: tf.Operation, values: list[Value], dims: Any, generator: DrawCounter
) -> Value:
    """Draws by a counter that other branches of the program draw on by."""
    shape, *bounds = [emitter.whole(value) for value in values]
    key, counter = generator.begin()
    dtype, kind = op.outputs[0].dtype, STATELESS[op.type]

    def make(shape: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
        drawn = draw_stateless(kind, shape, key, counter, bounds, dtype)
        generator.made.add(drawn.op)
        return drawn

    generator.advance(counter, tf.reduce_prod(shape))
    each = emitter.share.each_of(dims[0])
    # Compiled or not: these are drawn by the kernel, which gives what an uncompiled process draws.
    if each and kind in _SKIPPING and isinstance(sizes.product(dims[1:]), int):
        return _draw_rows(emitter, make, counter, dtype, dims, each)
    return emitter.spread(make(shape, counter), dims)


def _can_skip(emitter: Emitter, op: tf.Operation, values: list[Value], dims: Any) -> bool:
    if not _takes_one_each(emitter, op.type) or any(not value.is_replicated for value in values):
        return False
    algorithm = emitter.sizes_of(op, 3, values)
    is_philox = algorithm is not None and algorithm.item() in _PHILOX
    return is_philox and isinstance(sizes.product(dims[1:]), int) and values[2].tensor.shape == (2,)


def _takes_one_each(emitter: Emitter, kind: str) -> bool:
    """Returns whether each element is made of the numbers of one count of Philox, in order."""
    # XLA makes pairs of normal numbers that lie apart, by the shape (XLA's `prng.cc`, TensorFlow
    # 2.21).
    return kind in _SKIPPING and not (emitter.is_compiled and "Normal" in kind)


def _draw_rows(
    emitter: Emitter, make: _Draw, counter: tf.Tensor, dtype: tf.DType, dims: Any, each: int
) -> Value:
    """Draws this worker's rows alone, by a counter that has skipped those before."""
    row = sizes.product(dims[1:])
    assert isinstance(row, int)
    rows = RowPlacement(0, each)
    # Salmon et al. 2011: each count of Philox gives four numbers of 32 bits, or two of 64.
    group = 2 if dtype.size == 8 else 4
    start, count = emitter.share.bounds(rows)
    first = tf.cast(start, tf.int64) * row
    skipped = first // group
    before = tf.cast(first - skipped * group, tf.int32)
    length = tf.cast(count, tf.int32) * row
    flat = make(tf.stack([before + length]), skip(counter, skipped))
    mine = tf.slice(flat, [before], [length])
    local = tf.concat([[tf.cast(count, tf.int32)], np.asarray(dims[1:], np.int32)], 0)
    return Value(tf.reshape(mine, local), rows, dims=dims)


def skip(counter: tf.Tensor, blocks: tf.Tensor) -> tf.Tensor:
    """Returns the counter of Philox, uint64 of shape (2,), moved on by a number of counts."""
    blocks = tf.cast(blocks, tf.uint64)
    low = counter[0] + blocks
    carry = tf.cast(low < blocks, tf.uint64)
    return tf.stack([low, counter[1] + carry])
