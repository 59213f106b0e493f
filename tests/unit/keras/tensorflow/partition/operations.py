"""Operations with a rule, as functions of tensors, with the sizes of their inputs; ``n`` is the batch's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

raw = tf.raw_ops
Size = int | str


class Operation(NamedTuple):
    """An operation under test.

    Attributes:
        call: computes it.
        shapes: the sizes of its inputs; ``n`` is the number of rows.
        kinds: for each input what its numbers are: ``f`` floats, ``i`` small integers, ``b`` Booleans.
        stays: whether rows of the first input must stay rows: a rule that declines would be no error.
    """

    call: Callable[..., Any]
    shapes: tuple[tuple[Size, ...], ...]
    kinds: str = ""
    stays: bool = True


def _unary(call: Callable[..., Any], *shape: Size) -> Operation:
    return Operation(call, (shape or ("n", 3, 2),))


IMAGE = ("n", 6, 5, 2)


def batch_normalization(x: tf.Tensor, training: bool = True) -> Any:
    """All outputs of one operation on images."""
    scale = tf.constant([0.5, 2.0])
    statistics = (tf.zeros([0]), tf.zeros([0])) if training else (tf.constant([0.5, -1.0]), scale)
    return raw.FusedBatchNormV3(
        x=x,
        scale=scale,
        offset=tf.constant([1.0, -1.0]),
        mean=statistics[0],
        variance=statistics[1],
        epsilon=0.5,
        is_training=training,
    )


def batch_normalization_gradient(dy: tf.Tensor, x: tf.Tensor) -> Any:
    """The gradients of images, scale and offset."""
    mean, variance, more = batch_normalization(x)[3:]
    return raw.FusedBatchNormGradV3(
        y_backprop=dy,
        x=x,
        scale=tf.constant([0.5, 2.0]),
        reserve_space_1=mean,
        reserve_space_2=variance,
        reserve_space_3=more,
        epsilon=0.5,
    )[:3]


OPERATIONS: dict[str, Operation] = {
    "abs": _unary(tf.abs),
    "tanh": _unary(tf.tanh),
    "negative": _unary(tf.negative),
    "cast": _unary(lambda x: tf.cast(x, tf.float64)),
    "cast to int": _unary(lambda x: tf.cast(x, tf.int32)),
    "add": Operation(tf.add, (("n", 3), ("n", 3))),
    "add a row": Operation(tf.add, (("n", 3), (3,))),
    "add a column": Operation(tf.add, (("n", 3), ("n", 1))),
    "subtract": Operation(tf.subtract, (("n", 3), ("n", 3))),
    "multiply by a number": Operation(tf.multiply, (("n", 3), ())),
    "multiply of two ranks": Operation(tf.multiply, ((4, "n", 3), ("n", 3))),
    "divide": Operation(tf.divide, (("n", 3), ())),
    "maximum": Operation(tf.maximum, (("n", 3), ("n", 3))),
    "squared difference": Operation(tf.math.squared_difference, (("n", 3), (3,))),
    "every pair": Operation(lambda a, b: a[:, None] * b[None, :], (("n",), ("n",)), stays=False),
    "add_n": Operation(lambda a, b, c: raw.AddN(inputs=[a, b, c]), (("n", 3),) * 3),
    "where": Operation(tf.where, (("n", 3), ("n", 3), ("n", 1)), "bff"),
    "equal": Operation(tf.equal, (("n",), ("n",)), "ii"),
    "sum of rows": _unary(lambda x: tf.reduce_sum(x, 0)),
    "sum of all": _unary(tf.reduce_sum),
    "sum of others": _unary(lambda x: tf.reduce_sum(x, [1, 2])),
    "sum, kept": _unary(lambda x: tf.reduce_sum(x, [1], keepdims=True)),
    "mean of rows": _unary(lambda x: tf.reduce_mean(x, 0)),
    "mean of all": _unary(tf.reduce_mean),
    "mean of rows and others, kept": _unary(lambda x: tf.reduce_mean(x, [0, 2], keepdims=True)),
    "product of rows": _unary(lambda x: tf.reduce_prod(x, 0)),
    "maximum of rows": _unary(lambda x: tf.reduce_max(x, 0)),
    "minimum of all": _unary(tf.reduce_min),
    "all": Operation(lambda x: tf.reduce_all(x, 0), (("n", 3),), "b"),
    "any": Operation(tf.reduce_any, (("n", 3),), "b"),
    "argmax": _unary(lambda x: tf.argmax(x, 1)),
    "argmax over rows": Operation(lambda x: tf.argmax(x, 0), (("n", 3),), stays=False),
    "cumulative sum": _unary(lambda x: tf.cumsum(x, 1)),
    "cumulative sum over rows": Operation(lambda x: tf.cumsum(x, 0), (("n", 3),), stays=False),
    "l2 loss": _unary(tf.nn.l2_loss),
    "moments": Operation(lambda x: tf.nn.moments(x, [0, 1]), (("n", 3, 2),), stays=False),
    "moments with dimensions kept": Operation(
        lambda x: tf.nn.moments(x, [0], keepdims=True), (("n", 3, 2),), stays=False
    ),
    "bits of the same size": _unary(lambda x: tf.bitcast(x, tf.int32)),
    "bits of a smaller size": _unary(lambda x: tf.bitcast(x, tf.uint8)),
    "matmul": Operation(tf.matmul, (("n", 4), (4, 3))),
    "matmul, of columns": Operation(
        lambda a, b: tf.matmul(a, b, transpose_a=True), (("n", 4), ("n", 3))
    ),
    "matmul, transposed": Operation(
        lambda a, b: tf.matmul(a, b, transpose_b=True), (("n", 4), ("n", 4))
    ),
    "batch matmul": Operation(tf.matmul, (("n", 2, 4), ("n", 4, 3))),
    "batch matmul by one": Operation(tf.matmul, (("n", 2, 4), (4, 3))),
    "batch matmul of columns": Operation(
        lambda a, b: tf.matmul(a, b, transpose_a=True), ((2, "n", 4), (2, "n", 3))
    ),
    "einsum": Operation(lambda a, b: tf.einsum("abc,cd->abd", a, b), (("n", 3, 4), (4, 5))),
    "einsum of attention": Operation(
        lambda a, b: tf.einsum("aecd,abcd->acbe", a, b), (("n", 3, 2, 4), ("n", 3, 2, 4))
    ),
    "einsum over rows": Operation(lambda a, b: tf.einsum("ab,ac->bc", a, b), (("n", 3), ("n", 4))),
    "shape": _unary(tf.shape),
    "size": _unary(tf.size),
    "reshape to vectors": _unary(lambda x: tf.reshape(x, [-1, 6])),
    "reshape, joined": _unary(lambda x: tf.reshape(x, [-1, 2])),
    "reshape, divided": Operation(lambda x: tf.reshape(x, [tf.shape(x)[0], 2, 2]), (("n", 4),)),
    "flatten": _unary(lambda x: tf.reshape(x, [-1])),
    "reshape across rows": Operation(lambda x: tf.reshape(x, [4, -1]), (("n", 4),), stays=False),
    "transpose": _unary(lambda x: tf.transpose(x, [2, 0, 1])),
    "expand": _unary(lambda x: tf.expand_dims(x, 0)),
    "squeeze": Operation(lambda x: tf.squeeze(x, [1]), (("n", 1, 3),)),
    "squeeze of no dimension": Operation(tf.squeeze, (("n", 3),), stays=False),
    "broadcast": Operation(lambda x: tf.broadcast_to(x, [2, tf.shape(x)[0], 3]), (("n", 1),)),
    "tile": _unary(lambda x: tf.tile(x, [1, 2, 1])),
    "tile of rows": Operation(lambda x: tf.tile(x, [2, 1]), (("n", 3),), stays=False),
    "fill": _unary(lambda x: tf.fill([tf.shape(x)[0], 2], 3.0) + x[:, :2, 0]),
    "range": Operation(lambda x: tf.range(tf.shape(x)[0]), (("n", 3),)),
    "zeros like": _unary(tf.zeros_like),
    "concat": Operation(lambda a, b: tf.concat([a, b], 1), (("n", 3), ("n", 2))),
    "concat of rows": Operation(
        lambda a, b: tf.concat([a, b], 0), (("n", 3), ("n", 3)), stays=False
    ),
    "stack": Operation(lambda a, b: tf.stack([a, b], 1), (("n", 3), ("n", 3))),
    "stack first": Operation(lambda a, b: tf.stack([a, b]), (("n", 3), ("n", 3))),
    "unstack": _unary(lambda x: tf.unstack(x, axis=2)),
    "split": _unary(lambda x: tf.split(x, 2, axis=2)),
    "split by sizes": Operation(lambda x: tf.split(x, [1, 2], axis=1), (("n", 3),)),
    "pad": Operation(lambda x: tf.pad(x, [[0, 0], [1, 2]]), (("n", 3),)),
    "pad of rows": Operation(lambda x: tf.pad(x, [[1, 0], [0, 0]]), (("n", 3),), stays=False),
    "mirror pad": Operation(lambda x: tf.pad(x, [[0, 0], [1, 1]], "REFLECT"), (("n", 3),)),
    "slice": Operation(lambda x: tf.slice(x, [0, 1], [-1, 2]), (("n", 3),)),
    "index": _unary(lambda x: x[:, 1]),
    "index with ellipsis": _unary(lambda x: x[..., 1]),
    "index with a new axis": _unary(lambda x: x[:, None, 1:]),
    "first rows": Operation(lambda x: x[:2], (("n", 3),), stays=False),
    "first row": Operation(lambda x: x[0], (("n", 3),), stays=False),
    "every second row": Operation(lambda x: x[::2], (("n", 3),), stays=False),
    "reverse": _unary(lambda x: tf.reverse(x, [1])),
    "reverse of rows": Operation(lambda x: tf.reverse(x, [0]), (("n", 3),), stays=False),
    "gather": Operation(tf.gather, ((7, 3), ("n",)), "fi", stays=False),
    "gather of columns": Operation(lambda x, i: tf.gather(x, i, axis=1), (("n", 7), (2,)), "fi"),
    "gather of rows by rows": Operation(
        lambda x, i: tf.gather(x, i, batch_dims=1), (("n", 7), ("n", 2)), "fi"
    ),
    "gather_nd": Operation(
        lambda x, i: tf.gather_nd(x, i[:, None]), ((7, 3), ("n",)), "fi", stays=False
    ),
    "segment sum": Operation(
        lambda x, i: tf.math.unsorted_segment_sum(x, i, 5), (("n", 3), ("n",)), "fi"
    ),
    "segment maximum": Operation(
        lambda x, i: tf.math.unsorted_segment_max(x, i, 5), (("n", 3), ("n",)), "fi"
    ),
    "scatter": Operation(
        lambda x, i: tf.scatter_nd(i[:, None], x, [7, 3]), (("n", 3), ("n",)), "fi"
    ),
    "one hot": Operation(lambda i: tf.one_hot(i, 5), (("n", 2),), "i"),
    "one hot, first": Operation(lambda i: tf.one_hot(i, 5, axis=0), (("n",),), "i"),
    "top k": _unary(lambda x: tf.math.top_k(x, 2), "n", 4),
    "softmax": _unary(tf.nn.softmax, "n", 4),
    "softmax over rows": Operation(
        lambda x: tf.nn.softmax(tf.transpose(x)), (("n", 4),), stays=False
    ),
    "cross-entropy": Operation(
        lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x), (("n", 4), ("n", 4))
    ),
    "sparse cross-entropy": Operation(
        lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x), (("n", 5), ("n",)), "fi"
    ),
    "convolution": Operation(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), (IMAGE, (3, 3, 2, 4))),
    "depthwise convolution": Operation(
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "VALID"), (IMAGE, (3, 3, 2, 2))
    ),
    "transposed convolution": Operation(
        lambda x, w: tf.nn.conv2d_transpose(x, w, tf.stack([tf.shape(x)[0], 8, 7, 4]), 1, "VALID"),
        (IMAGE, (3, 3, 4, 2)),
    ),
    "filter gradient": Operation(
        lambda x, dy: raw.Conv2DBackpropFilter(
            input=x,
            filter_sizes=[3, 3, 2, 4],
            out_backprop=dy,
            strides=[1, 1, 1, 1],
            padding="SAME",
        ),
        (IMAGE, ("n", 6, 5, 4)),
    ),
    "batch normalization": Operation(lambda x: batch_normalization(x)[:3], (IMAGE,)),
    "batch normalization of moving statistics": Operation(
        lambda x: batch_normalization(x, False)[0], (IMAGE,)
    ),
    "batch normalization gradient": Operation(batch_normalization_gradient, (IMAGE, IMAGE)),
    "max pool": Operation(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"), (IMAGE,)),
    "average pool": Operation(lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"), (IMAGE,)),
    "bias": Operation(tf.nn.bias_add, (IMAGE, (2,))),
    "bias gradient": Operation(lambda x: raw.BiasAddGrad(out_backprop=x), (IMAGE,)),
    "resize": Operation(lambda x: tf.image.resize(x, [3, 4]), (IMAGE,)),
    "resize to nearest": Operation(lambda x: tf.image.resize(x, [9, 4], "nearest"), (IMAGE,)),
    "band": Operation(lambda x: tf.linalg.band_part(x, 1, 0), (("n", 3, 3),)),
    "inverse": Operation(lambda x: tf.linalg.inv(x + 9 * tf.eye(3)), (("n", 3, 3),)),
    "as string": Operation(tf.strings.as_string, (("n", 2),), "i"),
    "bucketize": _unary(lambda x: raw.Bucketize(input=x, boundaries=[-0.5, 0.5])),
    "bincount": Operation(
        lambda i: tf.math.bincount(i, minlength=5, maxlength=5, axis=-1), (("n", 4),), "i"
    ),
    "sort": _unary(lambda x: tf.sort(x, 0), "n", 3)._replace(stays=False),
    "unique": Operation(lambda i: tf.unique(i)[0], (("n",),), "i", stays=False),
    "boolean mask": Operation(
        lambda x, m: tf.boolean_mask(x, m), (("n", 3), ("n",)), "fb", stays=False
    ),
    "draws": _unary(lambda x: tf.random.stateless_uniform(tf.shape(x), (1, 2))),
    "normal draws": _unary(lambda x: tf.random.stateless_normal(tf.shape(x), (3, 2))),
    "truncated draws": _unary(lambda x: tf.random.stateless_truncated_normal(tf.shape(x), (1, 2))),
    "whole draws": _unary(
        lambda x: tf.random.stateless_uniform(tf.shape(x), (1, 2), 0, 90, tf.int64)
    ),
}
