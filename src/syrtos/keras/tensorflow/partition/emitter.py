"""Operations of the traced program, emitted for this worker's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.comm.arrays import ReduceOp
from syrtos.keras.tensorflow import tf_internals_emission
from syrtos.keras.tensorflow.partition import tensor_lists
from syrtos.keras.tensorflow.partition.draw_counters import DRAWING, DrawCounters
from syrtos.keras.tensorflow.partition.exchanges import Exchanges
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.partition.share import Share
from syrtos.keras.tensorflow.partition.values import (
    REPLICATED,
    Partial,
    Placement,
    RowPlacement,
    Size,
    Value,
)

# Emits an operation for this worker. None: the rule does not know this case.
Rule = Callable[["Emitter", tf.Operation, list[Value]], "list[Value] | None"]


class Emitter:
    """The means of a rule: to add operations, and to make values whole or cut them to rows.

    Attributes:
        share: this worker's rows.
        exchanges: the other workers.
        report: what is noted of the program.
        counters: those of the program's random operations; None where each keeps its own.
        shares_draws: whether operations that keep a counter of their own draw by functions that
            another branch of the program calls too.
        callers: the calls, branches and loops of the traced program that are being emitted.
        is_compiled: whether XLA compiles the program.
        variances: those that were exchanged with their means, by the operations that take them.
    """

    def __init__(self, share: Share, exchanges: Exchanges, report: Report) -> None:
        self.share = share
        self.exchanges = exchanges
        self.report = report
        self.variances: dict[tf.Operation, Value] = {}
        self.counters: DrawCounters | None = None
        self.shares_draws = False
        self.callers: tuple[tf.Operation, ...] = ()
        self.is_compiled = False
        # The operation that was added last.
        self.made: tf.Operation | None = None
        # Whether sums of partial and of whole values stay partial: in a loop, which would reduce
        # them in each of its steps.
        self.defers_sums = False
        # Partial values that will be reduced, in the order in which they were made.
        self._due: list[Value] = []

    # -- operations ----------------------------------------------------------------------------

    def emit(self, operation: tf.Operation, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds a copy of an operation to the current graph."""
        if self.counters and self.shares_draws and operation.type in DRAWING:
            self.made = self.counters.call_function(operation, self.callers, tensors)
        else:
            self.made = tf_internals_emission.emit(operation, tensors)
        return list(self.made.outputs)

    def emit_as(
        self, operation: tf.Operation, values: Sequence[Value], placement: RowPlacement | Partial
    ) -> list[Value]:
        """Adds an operation that takes the workers' own tensors; all outputs get one placement."""
        outputs = self.emit(operation, [value.tensor for value in values])
        return [Value(tensor, placement) for tensor in outputs]

    # -- placements ----------------------------------------------------------------------------

    def whole(self, value: Value) -> tf.Tensor:
        """Returns the whole value: rows are gathered, a partial value is reduced."""
        if isinstance(value.placement, Partial):
            self.reduce_due([value])
        if value.rows is None:
            return value.tensor
        if value.gathered is None:
            value.gathered = self._gather(value, value.rows)
        return value.gathered

    def make_whole(self, value: Value) -> Value:
        """Returns a value that every worker has whole."""
        if value.is_replicated:
            return value
        return Value(self.whole(value), known=value.known, dims=self.dims(value))

    def reduce_partial(self, values: Sequence[Value]) -> list[Value]:
        """Returns values of which partial ones are reduced; others stay as they are."""
        return [self.make_whole(value) if value.is_partial else value for value in values]

    def at_rows(self, value: Value, rows: RowPlacement) -> tf.Tensor:
        """Returns this worker's part of a value along a dimension in which it has the rows.

        A dimension of size 1, which is broadcast, stays as it is.
        """
        if value.rows == rows:
            return value.tensor
        if value.tensor.dtype == tf.variant:
            return self._list_at_rows(value, rows)
        dims = self.dims(value)
        whole = self.whole(value)
        if dims is not None and dims[rows.dim] == 1:
            return whole
        start, count = self.share.bounds(rows)
        is_known = dims is not None and dims[rows.dim] == self.share.size(rows.each)
        if not is_known:
            # In a graph of TensorFlow 1 `==` compares identities.
            is_one = tf.equal(tf.shape(whole)[rows.dim], 1)
            start, count = tf.where(is_one, 0, start), tf.where(is_one, 1, count)
        return slice_dim(whole, rows.dim, start, count)

    def _list_at_rows(self, value: Value, rows: RowPlacement) -> tf.Tensor:
        if value.is_empty_list:
            return value.tensor
        whole = Value(self.whole(value), element_dtype=value.element_dtype)
        elements = Value(tensor_lists.stack_elements(whole))
        return tensor_lists.list_of(self.at_rows(elements, RowPlacement(rows.dim + 1, rows.each)))

    def spread(self, tensor: tf.Tensor, dims: tuple[Size, ...] | None) -> Value:
        """Returns a tensor that every worker has; where its first dimension is of rows, cut to them."""
        each = self.share.each_of(dims[0]) if dims else None
        if not each:
            return Value(tensor, dims=dims)
        whole = Value(tensor, dims=dims)
        rows = RowPlacement(0, each)
        return Value(self.at_rows(whole, rows), rows, dims=dims, gathered=tensor)

    def at(self, value: Value, placement: Placement) -> tf.Tensor:
        """Returns this worker's tensor of a value at a placement."""
        if value.placement == placement:
            return value.tensor
        if isinstance(placement, RowPlacement):
            return self.at_rows(value, placement)
        whole = self.whole(value)
        # Of a maximum, or a minimum, each worker may have the whole.
        if isinstance(placement, Partial) and self.exchanges.rank:
            if placement.op is ReduceOp.SUM:
                return tf.zeros_like(whole)
            if placement.op is ReduceOp.PRODUCT:
                return tf.ones_like(whole)
        return whole

    # -- sizes ---------------------------------------------------------------------------------

    def dims(self, value: Value) -> tuple[Size, ...] | None:
        """Returns the sizes of the whole value, as far as they are known."""
        if value.dims is not None:
            return value.dims
        if value.tensor.shape.rank is None:
            return None
        sizes: list[Size] = list(value.tensor.shape.as_list())
        if value.rows and value.tensor.dtype != tf.variant:
            sizes[value.rows.dim] = self.share.size(value.rows.each)
        return tuple(sizes)

    def sizes_of(
        self, operation: tf.Operation, index: int, values: Sequence[Value]
    ) -> np.ndarray | None:
        """Returns what is known of an input that is an integer, or a vector of integers."""
        if values[index].known is not None:
            return values[index].known
        found = tf.get_static_value(operation.inputs[index])
        return None if found is None else np.asarray(found).astype(object)

    def axis(
        self, operation: tf.Operation, index: int, values: Sequence[Value], rank: int | None
    ) -> int | None:
        """Returns an input that is a dimension, counted from the first one; None if unknown."""
        found = self.sizes_of(operation, index, values)
        if found is None or rank is None or found.size != 1 or not isinstance(found.item(), int):
            return None
        return found.item() % rank if rank else 0

    # -- reductions ------------------------------------------------------------------------------

    def note_due(self, value: Value) -> None:
        """Notes a partial value that some operation needs whole; full buckets are reduced."""
        self._due.append(value)
        bucket = [v for v in self._due if v.is_partial]
        if sum(_nbytes(v.tensor) for v in bucket) >= self.exchanges.bucket_bytes:
            self._reduce_all(bucket)

    def reduce_due(self, needed: Sequence[Value]) -> None:
        """Reduces partial values that are needed now, and with them all that will be."""
        due = {id(value): value for value in (*self._due, *needed) if value.is_partial}
        self._due = []
        self._reduce_all(list(due.values()))

    def _reduce_all(self, values: Sequence[Value]) -> None:
        groups: dict[object, list[Value]] = {}
        for value in values:
            groups.setdefault(self.exchanges.kind_of(value), []).append(value)
        for group in groups.values():
            self.report.reductions += 1
            reduced = self.exchanges.reduce(group)
            for value, tensor in zip(group, reduced, strict=True):
                value.tensor, value.placement = tensor, REPLICATED

    def _gather(self, value: Value, rows: RowPlacement) -> tf.Tensor:
        self.report.gathers += 1
        if value.tensor.dtype == tf.variant:
            return tensor_lists.gather_list(self.exchanges, value, rows)
        if rows.dim == 0:
            (found,) = self.exchanges.gather([value.tensor])
        else:
            order = [rows.dim, *(d for d in range(value.tensor.shape.rank) if d != rows.dim)]
            (found,) = self.exchanges.gather([tf.transpose(value.tensor, order)])
            found = tf.transpose(found, np.argsort(order))
        if (dims := self.dims(value)) is not None:
            found.set_shape([size if isinstance(size, int) else None for size in dims])
        return found


def slice_dim(tensor: tf.Tensor, dim: int, start: Any, count: Any) -> tf.Tensor:
    """Returns ``count`` entries of one dimension, from ``start`` on."""
    rank = tensor.shape.rank
    if rank is None:
        return tf.gather(tensor, tf.range(start, start + count), axis=dim)
    begin = [start if d == dim else 0 for d in range(rank)]
    size = [count if d == dim else -1 for d in range(rank)]
    return tf.slice(tensor, begin, size)


def _nbytes(tensor: tf.Tensor) -> int:
    return (
        (tensor.shape.num_elements() or 0) * tensor.dtype.size
        if tensor.shape.rank is not None
        else 0
    )
