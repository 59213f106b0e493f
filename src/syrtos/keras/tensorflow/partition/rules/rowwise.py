"""Rules of operations that compute each row, or each vector of the last dimensions, by itself."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.registry import rule, types
from syrtos.keras.tensorflow.partition.values import Partial, RowPlacement, Value


class _Inputs(NamedTuple):
    """The inputs of an operation that have rows in their first dimension; others are whole."""

    rows: tuple[int, ...]


_FIRST = _Inputs((0,))
_BOTH = _Inputs((0, 1))
_FIRST_THREE = _Inputs((0, 1, 2))
# Each row of the first dimension is computed by itself.
BY_ROW = {
    **dict.fromkeys(
        types(
            "Conv2D Conv3D DepthwiseConv2dNative Conv MaxPool MaxPool3D AvgPool AvgPool3D"
            " Dilation2D LRN ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea"
            " ScaleAndTranslate ExtractImagePatches DepthToSpace SpaceToDepth"
            " ImageProjectiveTransformV2 ImageProjectiveTransformV3"
        ),
        _FIRST,
    ),
    **dict.fromkeys(
        types(
            "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits ResizeBilinearGrad"
            " ResizeBicubicGrad"
        ),
        _BOTH,
    ),
    **dict.fromkeys(
        types("MaxPoolGrad MaxPool3DGrad MaxPoolGradGrad MaxPool3DGradGrad LRNGrad"), _FIRST_THREE
    ),
    "InTopKV2": _BOTH,
}
# These take the transforms of images beside them: one for all, or one a row.
_WITH_TRANSFORMS = ("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")


@rule(*BY_ROW)
def by_row(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows of the first dimension stay rows."""
    places = BY_ROW[op.type].rows
    found = {values[i].rows for i in places if values[i].rows}
    if len(found) != 1 or (rows := found.pop()) is None or rows.dim != 0:
        return None
    if op.type in _WITH_TRANSFORMS:
        places = (0, 1)
    tensors = [
        emitter.at_rows(value, rows) if i in places else emitter.whole(value)
        for i, value in enumerate(values)
    ]
    return [Value(tensor, rows) for tensor in emitter.emit(op, tensors)]


_FILTER_GRADIENTS = (
    "Conv2DBackpropFilter",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropFilter",
)


@rule(*_FILTER_GRADIENTS)
def filter_gradient(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The gradient of a filter sums over the rows of images and of gradients."""
    images, sizes, gradient = values
    rows = images.rows or gradient.rows
    if rows is None or rows.dim != 0 or sizes.rows:
        return None
    tensors = [emitter.at_rows(images, rows), sizes.tensor, emitter.at_rows(gradient, rows)]
    return [Value(tensor, Partial()) for tensor in emitter.emit(op, tensors)]


# The place of the sizes of the result, and of the gradient.
_INPUT_GRADIENTS = {
    "Conv2DBackpropInput": (0, 2),
    "Conv3DBackpropInputV2": (0, 2),
    "DepthwiseConv2dNativeBackpropInput": (0, 2),
    "AvgPoolGrad": (0, 1),
    "AvgPool3DGrad": (0, 1),
}


@rule(*_INPUT_GRADIENTS)
def input_gradient(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The gradient of images, also the result of a transposed convolution, has their rows."""
    at_sizes, at_gradient = _INPUT_GRADIENTS[op.type]
    rows = values[at_gradient].rows
    if rows is None or rows.dim != 0 or not values[at_sizes].is_replicated:
        return None
    if values[at_sizes].rank != 1:
        return None
    tensors = [emitter.whole(v) if i != at_gradient else v.tensor for i, v in enumerate(values)]
    sizes = tensors[at_sizes]
    _, count = emitter.share.bounds(rows)
    tensors[at_sizes] = tf.concat([[tf.cast(count, sizes.dtype)], sizes[1:]], 0)
    return [Value(tensor, rows) for tensor in emitter.emit(op, tensors)]


@rule("ResizeNearestNeighborGrad")
def resize_gradient(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The gradient of a resized image has its rows; its sizes are those of one image."""
    rows = values[0].rows
    if rows is None or rows.dim != 0:
        return None
    return [Value(t, rows) for t in emitter.emit(op, [values[0].tensor, emitter.whole(values[1])])]


@rule("BiasAdd")
def bias(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """A bias is added to each channel."""
    rows, rank = values[0].rows, values[0].rank
    if rows is None or rank is None:
        return None
    channels = rank - 1 if op.get_attr("data_format") == b"NHWC" else 1
    if rows.dim == channels:
        return None
    tensors = [values[0].tensor, emitter.whole(values[1])]
    return [Value(tensor, rows) for tensor in emitter.emit(op, tensors)]


# Operations on vectors, or matrices, of so many last dimensions.
LAST = {
    **dict.fromkeys(types("Softmax LogSoftmax TopKV2 TopK NthElement"), 1),
    **dict.fromkeys(types("FFT IFFT FFT2D IFFT2D"), 2),
    **dict.fromkeys(
        types(
            "MatrixBandPart MatrixInverse MatrixDeterminant Cholesky CholeskyGrad MatrixSolve"
            " MatrixTriangularSolve LogMatrixDeterminant MatrixDiagPartV3 Qr Svd SelfAdjointEigV2"
        ),
        2,
    ),
    **dict.fromkeys(types("MatrixDiag"), 1),
}


@rule(*LAST)
def within_last(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows before the last dimensions stay rows."""
    value, rank = values[0], values[0].rank
    if value.rows is None or rank is None or value.rows.dim >= rank - LAST[op.type]:
        return None
    if op.type in ("MatrixSolve", "MatrixTriangularSolve", "CholeskyGrad"):
        if values[1].rank != rank:
            return None
        tensors = [value.tensor, emitter.at_rows(values[1], value.rows)]
    else:
        tensors = [value.tensor, *(emitter.whole(other) for other in values[1:])]
    # Vectors that are not asked for are empty.
    rows, sizes = value.rows, [_size(traced, value.rows.dim) for traced in op.outputs]
    return [
        Value(tensor, rows) if size == _size(op.inputs[0], rows.dim) else Value(tensor)
        for tensor, size in zip(emitter.emit(op, tensors), sizes, strict=True)
    ]


def _size(tensor: tf.Tensor, dim: int) -> int | None:
    rank = tensor.shape.rank
    return 0 if rank is None or rank <= dim else tensor.shape[dim]


@rule("ReverseV2")
def reverse(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Reverses other dimensions than that of the rows."""
    value, axes = values[0], emitter.sizes_of(op, 1, values)
    if value.rows is None or value.rank is None or axes is None:
        return None
    if any(axis is None or axis % value.rank == value.rows.dim for axis in axes.ravel()):
        return None
    return emitter.emit_as(op, values, value.rows)


@rule("ReverseSequence")
def reverse_sequence(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Reverses each row up to its length."""
    value, rows = values[0], values[0].rows
    if rows is None or rows.dim != op.get_attr("batch_dim"):
        return None
    tensors = [value.tensor, emitter.at_rows(values[1], RowPlacement(0, rows.each))]
    return [Value(tensor, rows) for tensor in emitter.emit(op, tensors)]


@rule("LookupTableFindV2")
def lookup(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Looks up each key by itself."""
    rows = values[1].rows
    return emitter.emit_as(op, values, rows) if rows else None


@rule("DenseBincount")
def bincount(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows of a matrix are counted each by itself; a vector's counts are a partial sum."""
    value, weights = values[0], values[2]
    if value.rows is None or value.rows.dim != 0 or value.rank not in (1, 2):
        return None
    size, dims = emitter.whole(values[1]), emitter.dims(weights)
    if dims is None or dims[0] is None:
        return None
    has_weights = dims[0] != 0
    tensors = [
        value.tensor,
        size,
        emitter.at_rows(weights, value.rows) if has_weights else weights.tensor,
    ]
    if value.rank == 1 and op.get_attr("binary_output"):
        return None
    placement = value.rows if value.rank == 2 else Partial()
    return [Value(tensor, placement) for tensor in emitter.emit(op, tensors)]


@rule("Assert")
def check(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """A condition of the whole batch is checked; a worker prints its own rows."""
    emitter.emit(op, [emitter.whole(values[0]), *(value.tensor for value in values[1:])])
    return []
