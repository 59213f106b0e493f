"""Rules of shapes: sizes that a program computes, and operations that change the form of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from syrtos.keras.tensorflow.partition import sizes
from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.registry import rule, types
from syrtos.keras.tensorflow.partition.values import RowPlacement, Size, Value

# -- sizes as values -----------------------------------------------------------------------------


@rule("Shape", "ShapeN", takes_partial=True)
def shape(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The sizes of the whole value."""
    if any(value.rows and value.tensor.dtype == tf.variant for value in values):
        return None
    return [_shape_of(emitter, value, op.outputs[0].dtype) for value in values]


def _shape_of(emitter: Emitter, value: Value, dtype: tf.DType) -> Value:
    dims = emitter.dims(value)
    if dims is not None and None not in dims:
        entries = [emitter.share.tensor_of(size, dtype) for size in dims]
        tensor = tf.stack(entries) if entries else tf.constant([], dtype)
        return Value(tensor, known=sizes.vector(dims))
    local = tf.shape(value.tensor, dtype)
    if value.rows is None:
        return Value(local, known=None if dims is None else sizes.vector(dims))
    dim = value.rows.dim
    whole = emitter.share.tensor_of(emitter.share.size(value.rows.each), dtype)
    tensor = tf.concat([local[:dim], [whole], local[dim + 1 :]], 0)
    return Value(tensor, known=None if dims is None else sizes.vector(dims))


@rule("Size", takes_partial=True)
def size(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The number of elements of the whole value."""
    dtype = op.outputs[0].dtype
    found = _shape_of(emitter, values[0], dtype)
    total: Size = None if found.known is None else sizes.product(found.known)
    known = None if total is None else np.array(total, object)
    return [Value(tf.reduce_prod(found.tensor), known=known)]


@rule("Rank", takes_partial=True)
def rank_of(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The number of dimensions."""
    found = values[0].rank
    return None if found is None else [Value(tf.constant(found), known=np.array(found, object))]


def follow_sizes(
    emitter: Emitter, op: tf.Operation, values: list[Value]
) -> list[np.ndarray] | None:
    """Returns what is known of the results of an operation on sizes; None where nothing is."""
    combine = _FOLLOWED.get(op.type)
    if combine is None or not op.outputs[0].dtype.is_integer:
        return None
    found = [emitter.sizes_of(op, i, values) for i in range(len(values))]
    known = [entry for entry in found if entry is not None and entry.size <= 16]
    if len(known) < len(found):
        return None
    made = combine(op, known)
    results = made if isinstance(made, list) or made is None else [made]
    return None if results is None or any(entry.size > 16 for entry in results) else results


# Arrays of what is known, whose entries are ints, `RowCount` or None.
Known = Sequence[np.ndarray]


def _pack(op: tf.Operation, known: Known) -> np.ndarray | None:
    return (
        np.stack([np.asarray(entry, object) for entry in known])
        if op.get_attr("axis") == 0
        else None
    )


def _concat(op: tf.Operation, known: Known) -> np.ndarray | None:
    return np.concatenate([np.atleast_1d(entry) for entry in known[:-1]])


def _gather(op: tf.Operation, known: Known) -> np.ndarray | None:
    if op.get_attr("batch_dims") or known[0].ndim != 1 or None in known[1].ravel():
        return None
    return np.asarray(known[0][known[1].astype(int)], object)


def _slice(op: tf.Operation, known: Known) -> np.ndarray | None:
    attr = op.get_attr
    if known[0].ndim != 1 or attr("ellipsis_mask") or attr("new_axis_mask") or len(known[1]) != 1:
        return None
    if any(not isinstance(entry[0], int) for entry in known[1:]):
        return None
    begin, end, step = (entry[0] for entry in known[1:])
    if attr("shrink_axis_mask"):
        return np.array(known[0][begin], object)
    bounds = slice(None if attr("begin_mask") else begin, None if attr("end_mask") else end, step)
    return known[0][bounds]


def _slice_by_sizes(op: tf.Operation, known: Known) -> np.ndarray | None:
    vector, begin, length = known
    if vector.ndim != 1 or not isinstance(begin[0], int) or not isinstance(length[0], int):
        return None
    return vector[begin[0] : None if length[0] < 0 else begin[0] + length[0]]


def _product(op: tf.Operation, known: Known) -> np.ndarray | None:
    return np.array(sizes.product(known[0].ravel()), object) if known[0].ndim == 1 else None


def _arithmetic(op: tf.Operation, known: Known) -> np.ndarray | None:
    return sizes.combine({"Add": "AddV2"}.get(op.type, op.type), known[0], known[1])


def _invert(op: tf.Operation, known: Known) -> np.ndarray | None:
    return None if None in known[0] else np.argsort(known[0].astype(int)).astype(object)


def _reverse(op: tf.Operation, known: Known) -> np.ndarray | None:
    return known[0][::-1] if known[0].ndim == 1 else None


def _reshape(op: tf.Operation, known: Known) -> np.ndarray | None:
    target = [entry if isinstance(entry, int) else None for entry in known[1].ravel()]
    return None if None in target else known[0].reshape([int(size or 0) for size in target])


def _same(op: tf.Operation, known: Known) -> np.ndarray | None:
    return known[0]


def _offsets(op: tf.Operation, known: Known) -> list[np.ndarray] | None:
    axis, shapes = known[0].item(), known[1:]
    if not isinstance(axis, int):
        return None
    found, at = [], np.array(0, object)
    for entries in shapes:
        found.append(np.array([at.item() if d == axis else 0 for d in range(entries.size)], object))
        following = sizes.combine("AddV2", at, np.array(entries[axis], object))
        if following is None or None in following.ravel():
            return None
        at = following
    return found


_FOLLOWED: dict[str, Callable[[tf.Operation, Known], list[np.ndarray] | np.ndarray | None]] = {
    "ConcatOffset": _offsets,
    "Pack": _pack,
    "ConcatV2": _concat,
    "GatherV2": _gather,
    "StridedSlice": _slice,
    "Slice": _slice_by_sizes,
    "Prod": _product,
    **dict.fromkeys(types("Mul Sub Add AddV2 FloorDiv FloorMod Maximum Minimum"), _arithmetic),
    **dict.fromkeys(("Cast", "Identity", "Snapshot", "StopGradient"), _same),
    "InvertPermutation": _invert,
    "ReverseV2": _reverse,
    "Reshape": _reshape,
    "Squeeze": lambda op, known: known[0].reshape(()) if known[0].size == 1 else None,
    "ExpandDims": lambda op, known: known[0].reshape(1) if known[0].ndim == 0 else None,
}


@rule("BroadcastGradientArgs", takes_partial=True)
def broadcast_gradient(
    emitter: Emitter, op: tf.Operation, values: list[Value]
) -> list[Value] | None:
    """The dimensions in which one of two shapes was broadcast, where the sizes tell them."""
    first, second = (_sizes_of(emitter, op, i, values) for i in range(2))
    if first is None or second is None:
        return None
    rank = max(len(first), len(second))
    padded = [[1] * (rank - len(dims)) + dims for dims in (first, second)]
    found: tuple[list[int], list[int]] = [], []
    for dim, (one, other) in enumerate(zip(*padded, strict=True)):
        if one is None and other is None:
            return None
        if one == other and one != 1:
            continue
        if one != 1 and other != 1:
            return None  # one is not known, and may be 1
        for reduced, mine in zip(found, (one, other), strict=True):
            if mine == 1:
                reduced.append(dim)
    dtype = op.outputs[0].dtype
    return [Value(tf.constant(dims, dtype), known=sizes.vector(dims)) for dims in found]


def _sizes_of(
    emitter: Emitter, op: tf.Operation, index: int, values: list[Value]
) -> list[Size] | None:
    known = emitter.sizes_of(op, index, values)
    return None if known is None else list(known.ravel())


# -- forms ---------------------------------------------------------------------------------------


@rule("Reshape", takes_partial=True)
def reshape(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows stay rows where the elements of a row stay together."""
    value = values[0]
    if value.is_partial:
        return [
            Value(t, value.placement) for t in emitter.emit(op, [value.tensor, values[1].tensor])
        ]
    before, target = emitter.dims(value), _target(emitter, op, values)
    rows = value.rows
    if rows is None or before is None or target is None:
        return None
    place = rows_after_reshape(emitter, before, rows, target)
    if place is None:
        return None
    local: list[int | tf.Tensor] = [size if isinstance(size, int) else -1 for size in target]
    local[place.dim] = emitter.share.count * place.each if emitter.share.is_static else -1
    if sum(isinstance(size, int) and size == -1 for size in local) > 1:
        return None
    return [Value(tf.reshape(value.tensor, local), place, dims=tuple(target))]


def _target(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Size] | None:
    """Returns the sizes of a reshaped value; an entry of -1 is computed."""
    known = emitter.sizes_of(op, 1, values)
    static = op.outputs[0].shape
    if known is None:
        return list(static.as_list()) if static.rank is not None else None
    target: list[Size] = list(known.ravel())
    if static.rank == len(target):
        target = [
            s if t is None and s is not None else t for t, s in zip(target, static, strict=True)
        ]
    if -1 in target:
        dims = emitter.dims(values[0])
        others = sizes.product(size for size in target if size != -1)
        whole = None if dims is None else sizes.product(dims)
        target[target.index(-1)] = sizes.divide(whole, others)
    return target


def rows_after_reshape(
    emitter: Emitter, before: Sequence[Size], rows: RowPlacement, after: Sequence[Size]
) -> RowPlacement | None:
    """Returns where the rows are after a reshape; None where a worker's elements are not together."""
    outer, inner = sizes.product(before[: rows.dim]), sizes.product(before[rows.dim + 1 :])
    for dim in range(len(after)):
        mine = sizes.product(after[dim + 1 :])
        if sizes.product(after[:dim]) != outer or outer is None or mine is None or inner is None:
            continue
        whole = sizes.times(emitter.share.size(rows.each), inner)
        each = emitter.share.each_of(sizes.divide(whole, mine))
        # The sizes before and behind it tell that of the dimension itself.
        if (
            each
            and isinstance(mine, int)
            and isinstance(inner, int)
            and each * mine == rows.each * inner
        ):
            return RowPlacement(dim, each)
    return None


@rule("Transpose", "ConjugateTranspose", takes_partial=True)
def transpose(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows move with their dimension."""
    order = emitter.sizes_of(op, 1, values)
    if values[0].is_partial:
        return _partial_form(emitter, op, values)
    rows = values[0].rows
    if rows is None or order is None or None in order:
        return None
    return emitter.emit_as(op, values, RowPlacement(list(order).index(rows.dim), rows.each))


@rule("ExpandDims", takes_partial=True)
def expand(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """A dimension of size 1 is added."""
    value = values[0]
    if value.is_partial:
        return _partial_form(emitter, op, values)
    rank = None if value.rank is None else value.rank + 1
    axis, rows = emitter.axis(op, 1, values, rank), value.rows
    if axis is None or rows is None:
        return None
    return emitter.emit_as(op, values, RowPlacement(rows.dim + (axis <= rows.dim), rows.each))


@rule("Squeeze", takes_partial=True)
def squeeze(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Dimensions of size 1 are removed."""
    value, rows, rank = values[0], values[0].rows, values[0].rank
    if rank is None:
        return None
    named = op.get_attr("squeeze_dims")
    dims = op.inputs[0].shape
    if not named and (dims.rank is None or op.outputs[0].shape.rank is None):
        return None
    removed = [d % rank for d in named] or [d for d, s in enumerate(dims.as_list()) if s == 1]
    if op.outputs[0].shape.rank != rank - len(removed):
        return None
    # TensorFlow would remove all dimensions of size 1 then, and a share may have one row.
    if not removed:
        return [value]
    if value.is_partial:
        return [Value(tf.squeeze(value.tensor, removed), value.placement)]
    if rows is None or rows.dim in removed:
        return None
    place = RowPlacement(rows.dim - sum(d < rows.dim for d in removed), rows.each)
    return [Value(tf.squeeze(value.tensor, removed), place)]


def _partial_form(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Emits an operation that moves the elements of a partial value."""
    outputs = emitter.emit(op, [value.tensor for value in values])
    return [Value(tensor, values[0].placement) for tensor in outputs]


@rule("BroadcastTo")
def broadcast_to(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows stay rows where their dimension keeps its size."""
    value, target = values[0], emitter.sizes_of(op, 1, values)
    if value.is_replicated and target is not None and len(target):
        is_new = value.rank is not None and len(target) > value.rank
        return _repeated_in_rows(emitter, op, values, target[0], is_new)
    if value.rows is None or target is None or value.rank is None or len(target) < value.rank:
        return None
    dim = value.rows.dim + len(target) - value.rank
    if target[dim] != emitter.share.size(value.rows.each):
        return None
    local = [_local_size(emitter, size, d == dim, value.rows.each) for d, size in enumerate(target)]
    if any(size is None for size in local):
        return None
    return [Value(tf.broadcast_to(value.tensor, local), RowPlacement(dim, value.rows.each))]


def _local_size(emitter: Emitter, whole: Size, is_spread: bool, each: int) -> object:
    if is_spread:
        return emitter.share.count * each
    return None if whole is None else emitter.share.tensor_of(whole, tf.int32)


def _repeated_in_rows(
    emitter: Emitter, op: tf.Operation, values: list[Value], size: Size, is_new: bool
) -> list[Value] | None:
    """Repeats a value that has one entry, or none, in the dimension that gets rows."""
    dims = emitter.dims(values[0])
    each = emitter.share.each_of(size)
    if not each or dims is None or not (is_new or (dims and dims[0] == 1)):
        return None
    rows, sizes = RowPlacement(0, each), values[1].tensor
    mine = tf.cast(emitter.share.bounds(rows)[1], sizes.dtype)
    outputs = emitter.emit(op, [values[0].tensor, tf.concat([[mine], sizes[1:]], 0)])
    return [Value(tensor, rows) for tensor in outputs]


@rule("Tile")
def tile(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Repeats other dimensions than that of the rows."""
    value, multiples = values[0], emitter.sizes_of(op, 1, values)
    if value.is_replicated and multiples is not None and len(multiples):
        return _repeated_in_rows(emitter, op, values, multiples[0], False)
    if value.rows is None or multiples is None or multiples[value.rows.dim] != 1:
        return None
    return emitter.emit_as(op, values, value.rows)


@rule("Fill")
def fill(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """A tensor of equal elements with rows in its first dimension is made of this worker's rows."""
    known = emitter.sizes_of(op, 0, values)
    if known is None or known.size == 0 or values[1].rows:
        return None
    each = emitter.share.each_of(known.ravel()[0])
    if not each:
        return None
    rows = RowPlacement(0, each)
    sizes_now = tf.concat(
        [[tf.cast(emitter.share.bounds(rows)[1], values[0].tensor.dtype)], values[0].tensor[1:]], 0
    )
    outputs = emitter.emit(op, [sizes_now, values[1].tensor])
    return [Value(tensor, rows, dims=tuple(known.ravel())) for tensor in outputs]


@rule("Range")
def number(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The numbers of the rows, from 0 on, are rows."""
    known = [emitter.sizes_of(op, i, values) for i in range(3)]
    first, limit, step = (None if entry is None else entry.item() for entry in known)
    each = emitter.share.each_of(limit) if first == 0 and step == 1 else None
    if not each:
        return None
    whole = emitter.emit(op, [value.tensor for value in values])[0]
    return [emitter.spread(whole, (limit,))]


@rule("Bitcast")
def bitcast(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The same bits as another dtype; a smaller one adds a last dimension, a larger one takes it."""
    rows, rank = values[0].rows, values[0].rank
    if rows is None or rank is None:
        return None
    grows = op.outputs[0].dtype.size > op.inputs[0].dtype.size
    return None if grows and rows.dim == rank - 1 else emitter.emit_as(op, values, rows)
