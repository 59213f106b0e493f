"""Rules of products of matrices, and of Einstein's sums."""

from __future__ import annotations

import tensorflow as tf

from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.registry import rule
from syrtos.keras.tensorflow.partition.values import Partial, RowPlacement, Value


@rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def matrix_product(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows of the batch, of the left or of the right matrix stay rows; summed ones give a partial sum."""
    left, right = values
    if left.rank is None or right.rank is None:
        return None
    flags = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    rank = max(left.rank, right.rank)
    names = (
        _labels(left.rank, rank, bool(op.get_attr(flags[0])), "mk"),
        _labels(right.rank, rank, bool(op.get_attr(flags[1])), "kn"),
    )
    return contraction(emitter, op, values, names, _labels(rank, rank, False, "mn"))


def _labels(rank: int, full: int, transposed: bool, last: str) -> list[str]:
    """Returns a name for each dimension; dimensions of the batch are named by their place in the result."""
    batch = [f"batch {d + full - rank}" for d in range(rank - 2)]
    return [*batch, *(reversed(last) if transposed else last)]


@rule("Einsum")
def einsum(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Rows of a letter that the result has stay rows; those of a summed letter give a partial sum."""
    equation = op.get_attr("equation")
    text = equation.decode() if isinstance(equation, bytes) else equation
    inputs, _, output = text.replace(" ", "").partition("->")
    names = inputs.split(",")
    if "." in text or any(len(set(word)) != len(word) for word in (*names, output)):
        return None
    return contraction(emitter, op, values, tuple(map(list, names)), list(output))


def contraction(
    emitter: Emitter,
    op: tf.Operation,
    values: list[Value],
    names: tuple[list[str], ...],
    result: list[str],
) -> list[Value] | None:
    """Emits a sum of products, by the names of the dimensions of its inputs and of its result."""
    spread = [(v, labels[v.rows.dim]) for v, labels in zip(values, names, strict=True) if v.rows]
    if not spread:
        return None
    value, label = max(spread, key=lambda pair: pair[1] in result)
    assert value.rows is not None
    each = value.rows.each
    if not _has_all(emitter, values, names, label, each):
        return None
    tensors = [
        emitter.at_rows(v, RowPlacement(labels.index(label), each))
        if label in labels
        else emitter.whole(v)
        for v, labels in zip(values, names, strict=True)
    ]
    placement = RowPlacement(result.index(label), each) if label in result else Partial()
    return [Value(tensor, placement) for tensor in emitter.emit(op, tensors)]


def _has_all(
    emitter: Emitter, values: list[Value], names: tuple[list[str], ...], label: str, each: int
) -> bool:
    """Returns whether no input broadcasts a dimension that is summed over rows."""
    for value, labels in zip(values, names, strict=True):
        dims = emitter.dims(value)
        if label in labels and not label.startswith("batch"):
            size = None if dims is None else dims[labels.index(label)]
            if size == 1 and emitter.share.size(each) != 1:
                return False
    return True
