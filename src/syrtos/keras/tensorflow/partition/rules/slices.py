"""Rules of operations that take parts of tensors, or put tensors together."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.registry import rule
from syrtos.keras.tensorflow.partition.values import Partial, RowPlacement, Value, same_rows


@rule("ConcatV2", takes_partial=True)
def concat(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Tensors are put together along another dimension than that of the rows."""
    parts, rank = values[:-1], values[0].rank
    if all(part.placement == Partial() for part in parts):
        return emitter.emit_as(op, values, Partial())
    parts = emitter.reduce_partial(parts)
    axis, rows = emitter.axis(op, len(parts), values, rank), same_rows(parts)
    if axis is None or rows is None or axis == rows.dim:
        return None
    tensors = [emitter.at_rows(part, rows) for part in parts]
    return [Value(t, rows) for t in emitter.emit(op, [*tensors, values[-1].tensor])]


@rule("Pack", takes_partial=True)
def pack(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Tensors of one form are stacked along a new dimension."""
    if all(value.placement == Partial() for value in values):
        return emitter.emit_as(op, values, Partial())
    values = emitter.reduce_partial(values)
    rows, rank = same_rows(values), values[0].rank
    if rows is None or rank is None:
        return None
    axis = op.get_attr("axis") % (rank + 1)
    tensors = [emitter.at_rows(value, rows) for value in values]
    place = RowPlacement(rows.dim + (axis <= rows.dim), rows.each)
    return [Value(tensor, place) for tensor in emitter.emit(op, tensors)]


@rule("Unpack")
def unpack(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """A tensor is cut along another dimension than that of the rows."""
    rows, rank = values[0].rows, values[0].rank
    if rows is None or rank is None:
        return None
    axis = op.get_attr("axis") % rank
    if axis == rows.dim:
        return None
    return emitter.emit_as(op, values, RowPlacement(rows.dim - (axis < rows.dim), rows.each))


@rule("Split", "SplitV")
def split(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """A tensor is cut along another dimension than that of the rows."""
    at = 1 if op.type == "Split" else 0
    value = values[at]
    axis = emitter.axis(op, 0 if op.type == "Split" else 2, values, value.rank)
    if value.rows is None or axis is None or axis == value.rows.dim:
        return None
    tensors = [v.tensor if i == at else emitter.whole(v) for i, v in enumerate(values)]
    return [Value(tensor, value.rows) for tensor in emitter.emit(op, tensors)]


@rule("Pad", "PadV2", "MirrorPad", "MirrorPadGrad")
def pad(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Pads other dimensions than that of the rows."""
    rows, widths = values[0].rows, emitter.sizes_of(op, 1, values)
    if widths is None or rows is None or widths.ndim != 2:
        # Widths are a matrix, of which no entries are followed but those of a constant.
        return None
    if list(widths[rows.dim]) != [0, 0]:
        return None
    tensors = [values[0].tensor, *(emitter.whole(value) for value in values[1:])]
    return [Value(tensor, rows) for tensor in emitter.emit(op, tensors)]


@rule("Slice")
def slice_of_sizes(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Takes all rows, and a part of other dimensions."""
    rows = values[0].rows
    begin, length = emitter.sizes_of(op, 1, values), emitter.sizes_of(op, 2, values)
    if rows is None or begin is None or length is None or begin[rows.dim] != 0:
        return None
    if length[rows.dim] not in (-1, emitter.share.size(rows.each)):
        return None
    sizes = [-1 if d == rows.dim else n for d, n in enumerate(tf.unstack(values[2].tensor))]
    tensors = [
        values[0].tensor,
        values[1].tensor,
        tf.stack([tf.cast(n, values[2].tensor.dtype) for n in sizes]),
    ]
    return [Value(tensor, rows) for tensor in emitter.emit(op, tensors)]


@rule("StridedSlice")
def strided_slice(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Takes all rows, and a part of other dimensions."""
    rows, rank = values[0].rows, values[0].rank
    if rows is None or rank is None:
        return None
    place = place_in_slice(emitter, op, values, 1, rows.dim, rank, rows.each)
    if place is None:
        return None
    tensors = [values[0].tensor, *(emitter.whole(value) for value in values[1:])]
    # An end that is the number of all rows lies behind this worker's last one.
    return [Value(t, RowPlacement(place, rows.each)) for t in emitter.emit(op, tensors)]


@rule("StridedSliceGrad", takes_partial=False)
def strided_slice_gradient(
    emitter: Emitter, op: tf.Operation, values: list[Value]
) -> list[Value] | None:
    """The gradient of a slice of all rows has the rows of the tensor that was sliced."""
    shape, gradient = emitter.sizes_of(op, 0, values), values[4]
    if shape is None or gradient.rows is None:
        return None
    for dim, size in enumerate(shape):
        each = emitter.share.each_of(size)
        if each is None or each != gradient.rows.each:
            continue
        place = place_in_slice(emitter, op, values, 1, dim, len(shape), each)
        if place != gradient.rows.dim:
            continue
        dtype = values[0].tensor.dtype
        count = tf.cast(emitter.share.bounds(gradient.rows)[1], dtype)
        local = [count if d == dim else n for d, n in enumerate(tf.unstack(values[0].tensor))]
        spec = [emitter.whole(value) for value in values[1:4]]
        tensors = [tf.stack(local), *spec, gradient.tensor]
        return [Value(t, RowPlacement(dim, each)) for t in emitter.emit(op, tensors)]
    return None


def place_in_slice(
    emitter: Emitter,
    op: tf.Operation,
    values: Sequence[Value],
    first: int,
    dim: int,
    rank: int,
    each: int,
) -> int | None:
    """Returns the dimension of a slice in which all entries of ``dim`` are.

    ``first`` is the place of the inputs begin, end and strides. None where a part of the entries of
    ``dim`` is taken, or that can't be told.
    """
    attr = op.get_attr
    strides = emitter.sizes_of(op, first + 2, values)
    if strides is None:
        return None
    begin, end = (emitter.sizes_of(op, first + i, values) for i in range(2))
    source = target = 0
    ellipsis = attr("ellipsis_mask")
    for entry in range(len(strides)):
        if attr("new_axis_mask") >> entry & 1:
            target += 1
            continue
        if ellipsis >> entry & 1:
            named = sum(
                not (attr("new_axis_mask") | ellipsis) >> other & 1 for other in range(len(strides))
            )
            skipped = rank - named
            if source <= dim < source + skipped:
                return target + dim - source
            source, target = source + skipped, target + skipped
            continue
        shrinks = attr("shrink_axis_mask") >> entry & 1
        if source == dim:
            begins = attr("begin_mask") >> entry & 1 or (begin is not None and begin[entry] == 0)
            ends = attr("end_mask") >> entry & 1 or (
                end is not None and end[entry] == emitter.share.size(each)
            )
            takes_all = begins and ends and strides[entry] == 1 and not shrinks
            return target if takes_all else None
        source, target = source + 1, target + (not shrinks)
    return target + dim - source
