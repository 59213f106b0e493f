"""Rules of lists of tensors, by which recurrent layers pass rows from one step of a loop to the next.

The placement of a list is that of its elements. An empty list takes the placement of the first
element.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.registry import rule
from syrtos.keras.tensorflow.partition.tensor_lists import ANY_SHAPE
from syrtos.keras.tensorflow.partition.values import RowPlacement, Value

# The operations that make a list, and the place of its elements' shape.
MAKING = {"EmptyTensorList": 0, "TensorListReserve": 0}


@rule(*MAKING)
def empty_list(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """A list without elements, of which any may become rows: sizes made of rows are left open."""
    shape = emitter.sizes_of(op, 0, values)
    if shape is None or shape.ndim == 0:
        return None
    is_open = [bool(emitter.share.each_of(size)) or not isinstance(size, int) for size in shape]
    # A model may know the number of rows that its batches do not say.
    is_open[:1] = [is_open[0] or not emitter.share.is_static] if is_open else []
    sizes = [-1 if opened else size for opened, size in zip(is_open, shape, strict=True)]
    tensors = [tf.constant(sizes, op.inputs[0].dtype), *(v.tensor for v in values[1:])]
    return [Value(tensor) for tensor in emitter.emit(op, tensors)]


@rule("TensorListFromTensor")
def from_tensor(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Elements are cut along the first dimension, which has no rows."""
    value = values[0]
    if value.rows is None or value.rows.dim == 0:
        return None
    shape = tf.constant(
        [-1 if n is None else n for n in value.tensor.shape.as_list()[1:]], op.inputs[1].dtype
    )
    (made,) = emitter.emit(op, [value.tensor, shape])
    dtype = value.tensor.dtype
    return [Value(made, RowPlacement(value.rows.dim - 1, value.rows.each), element_dtype=dtype)]


@rule("TensorListGetItem")
def get_item(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """An element has the rows of the list."""
    rows = values[0].rows
    if rows is None:
        return None
    tensors = [values[0].tensor, emitter.whole(values[1]), tf.constant(ANY_SHAPE)]
    return [_element(op, emitter.emit(op, tensors)[0], rows)]


@rule("TensorListPopBack")
def pop(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The last element has the rows of the list."""
    rows = values[0].rows
    if rows is None:
        return None
    rest, tensor = emitter.emit(op, [values[0].tensor, tf.constant(ANY_SHAPE)])
    return [Value(rest, rows, element_dtype=tensor.dtype), _element(op, tensor, rows)]


def _element(op: tf.Operation, tensor: tf.Tensor, rows: RowPlacement) -> Value:
    shape = op.outputs[-1].shape
    if shape.rank is not None:
        tensor.set_shape([None if d == rows.dim else n for d, n in enumerate(shape.as_list())])
    return Value(tensor, rows)


@rule("TensorListSetItem", "TensorListPushBack")
def put(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """An element gets the placement of the list, which gets that of its first element."""
    into, element = values[0], values[-1]
    rows = into.rows or element.rows
    if rows is None:
        return None
    first, last = emitter.at_rows(into, rows), emitter.at_rows(element, rows)
    tensors = [first, *(emitter.whole(v) for v in values[1:-1]), last]
    (made,) = emitter.emit(op, tensors)
    return [Value(made, rows, element_dtype=element.tensor.dtype)]


@rule("TensorListStack")
def stack(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Elements are put together along a new first dimension."""
    rows = values[0].rows
    if rows is None:
        return None
    (tensor,) = emitter.emit(op, [values[0].tensor, tf.constant(ANY_SHAPE)])
    shape = op.outputs[0].shape
    if shape.rank is None:
        return None
    tensor.set_shape([None if d == rows.dim + 1 else n for d, n in enumerate(shape.as_list())])
    return [Value(tensor, RowPlacement(rows.dim + 1, rows.each))]


@rule("TensorListLength")
def length(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The number of elements."""
    return [Value(emitter.emit(op, [values[0].tensor])[0])]


@rule("TensorListElementShape")
def element_shape(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """The shape of an element, of which only the rank is said."""
    shape = op.outputs[0].shape
    rank = shape[0] if shape.rank == 1 else None
    found = ANY_SHAPE if rank is None else [ANY_SHAPE] * rank
    return [Value(tf.constant(found, op.outputs[0].dtype))]


_PUTTING = ("TensorListSetItem", "TensorListPushBack")
_TAKING = ("TensorListGetItem", "TensorListPopBack")


def note_lists(op: tf.Operation, values: list[Value], results: list[Value]) -> None:
    """Notes on results of an operation what is known of lists, and of elements taken from them."""
    # Loops and branches, which have inputs of many kinds, note their results themselves.
    is_on_list = op.type in MAKING or op.type == "Identity" or op.type.startswith("TensorList")
    for result in results if is_on_list else ():
        if result.tensor.dtype == tf.variant:
            _note_list(op, values, result)
    if op.type in _TAKING and results[-1].known is None:
        results[-1].known = values[0].element_known


def _note_list(op: tf.Operation, values: list[Value], result: Value) -> None:
    source = values[0] if values else result
    if result.element_dtype is None:
        named = "element_dtype" in op.node_def.attr
        result.element_dtype = op.get_attr("element_dtype") if named else source.element_dtype
    result.is_empty_list = op.type in MAKING or (op.type == "Identity" and source.is_empty_list)
    result.element_known = source.element_known
    if op.type in _PUTTING:
        known = values[-1].known
        is_same = source.is_empty_list or same_known(source.element_known, known)
        result.element_known = known if is_same else None


def same_known(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Returns whether the same, and anything at all, is known of two values."""
    return one is not None and other is not None and np.array_equal(one, other)
