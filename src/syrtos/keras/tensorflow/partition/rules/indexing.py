"""Rules of operations that look up, add up or mark entries by their numbers."""

from __future__ import annotations

import tensorflow as tf

from syrtos.comm.arrays import ReduceOp
from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.registry import rule
from syrtos.keras.tensorflow.partition.values import Partial, RowPlacement, Value


@rule("GatherV2")
def gather(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows of numbers look up in a table; a table's rows are looked up along another dimension."""
    table, numbers = values[0], values[1]
    axis = emitter.axis(op, 2, values, table.rank)
    batch = op.get_attr("batch_dims")
    if axis is None or table.rank is None or numbers.rank is None:
        return None
    batch = batch % numbers.rank if numbers.rank and batch < 0 else batch
    rows, others = numbers.rows, values[2].tensor
    if rows and rows.dim < batch:
        tensors = [emitter.at_rows(table, rows), numbers.tensor, others]
        return [Value(t, rows) for t in emitter.emit(op, tensors)]
    if table.rows and table.rows.dim < batch:
        tensors = [table.tensor, emitter.at_rows(numbers, table.rows), others]
        return [Value(t, table.rows) for t in emitter.emit(op, tensors)]
    if rows and (table.rows is None or table.rows.dim == axis):
        place = RowPlacement(axis + rows.dim - batch, rows.each)
        tensors = [emitter.whole(table), numbers.tensor, others]
        return [Value(t, place) for t in emitter.emit(op, tensors)]
    if table.rows and table.rows.dim != axis:
        dim = table.rows.dim + (numbers.rank - batch - 1 if table.rows.dim > axis else 0)
        tensors = [table.tensor, emitter.whole(numbers), others]
        return [Value(t, RowPlacement(dim, table.rows.each)) for t in emitter.emit(op, tensors)]
    return None


@rule("ResourceGather")
def gather_of_variable(
    emitter: Emitter, op: tf.Operation, values: list[Value]
) -> list[Value] | None:
    """Rows of numbers look up in a variable."""
    rows = values[1].rows
    return None if rows is None or op.get_attr("batch_dims") else emitter.emit_as(op, values, rows)


@rule("GatherNd")
def gather_nd(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows of places look up in a table."""
    table, places = values
    if places.rows is None or places.rank is None or places.rows.dim == places.rank - 1:
        return None
    tensors = [emitter.whole(table), places.tensor]
    return [Value(t, places.rows) for t in emitter.emit(op, tensors)]


@rule("ScatterNd")
def scatter_nd(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The sum of rows at their places is a partial sum."""
    places, updates = values[0], values[1]
    rows = places.rows or updates.rows
    if rows is None or places.rank is None or rows.dim >= places.rank - 1:
        return None
    tensors = [
        emitter.at_rows(places, rows),
        emitter.at_rows(updates, rows),
        emitter.whole(values[2]),
    ]
    return [Value(t, Partial()) for t in emitter.emit(op, tensors)]


_SEGMENTS = {
    "UnsortedSegmentSum": ReduceOp.SUM,
    "UnsortedSegmentMax": ReduceOp.MAX,
    "UnsortedSegmentMin": ReduceOp.MIN,
    "UnsortedSegmentProd": ReduceOp.PRODUCT,
}


@rule(*_SEGMENTS)
def segments(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows are reduced by the numbers of their segments."""
    data, numbers = values[0], values[1]
    rows = data.rows or numbers.rows
    if rows is None or numbers.rank is None or rows.dim >= numbers.rank:
        return None
    tensors = [
        emitter.at_rows(data, rows),
        emitter.at_rows(numbers, rows),
        emitter.whole(values[2]),
    ]
    return [Value(t, Partial(_SEGMENTS[op.type])) for t in emitter.emit(op, tensors)]


@rule("OneHot")
def one_hot(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """A dimension is added, in which one entry is marked."""
    rows, rank = values[0].rows, values[0].rank
    if rows is None or rank is None:
        return None
    axis = op.get_attr("axis")
    axis = rank if axis == -1 else axis
    tensors = [values[0].tensor, *(emitter.whole(value) for value in values[1:])]
    place = RowPlacement(rows.dim + (axis <= rows.dim), rows.each)
    return [Value(t, place) for t in emitter.emit(op, tensors)]
