"""Arithmetic of sizes: integers, and multiples of the number of rows of the whole batch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from syrtos.keras.tensorflow.partition.values import RowCount, Size

# Vectors of more entries are no shapes, and are not followed.
_LONGEST = 16


def times(one: Size, other: Size) -> Size:
    """Returns the product of two sizes; None where it is not known, or has rows twice."""
    if one is None or other is None:
        return None
    if isinstance(one, RowCount):
        return None if isinstance(other, RowCount) else RowCount(one.each * other)
    return RowCount(one * other.each) if isinstance(other, RowCount) else one * other


def product(sizes: Iterable[Size]) -> Size:
    """Returns the product of sizes, 1 of none."""
    return functools.reduce(times, sizes, 1)


def divide(one: Size, other: Size) -> Size:
    """Returns the quotient of two sizes where it is exact; None elsewhere."""
    if one is None or other is None or other == 0:
        return None
    if isinstance(one, RowCount):
        if isinstance(other, RowCount):
            return one.each // other.each if one.each % other.each == 0 else None
        return RowCount(one.each // other) if one.each % other == 0 else None
    return None if isinstance(other, RowCount) or one % other else one // other


def vector(entries: Sequence[Size]) -> np.ndarray:
    """Returns sizes as an array of objects."""
    found = np.empty(len(entries), object)
    found[:] = list(entries)
    return found


def combine(operation: str, one: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """Returns the entries of a sum, difference, product, quotient, minimum or maximum of integers."""
    pairs = np.broadcast(one, other)
    if pairs.size > _LONGEST:
        return None
    found = [_combine(operation, a, b) for a, b in pairs]
    return vector(found).reshape(pairs.shape)


def _combine(operation: str, one: Size, other: Size) -> Size:
    if operation == "Mul":
        return times(one, other)
    if operation == "FloorDiv":
        return divide(one, other)
    if isinstance(one, RowCount) and isinstance(other, RowCount):
        each = {"AddV2": one.each + other.each, "Sub": one.each - other.each}.get(operation)
        # A difference of no rows is zero, and one below zero is no size.
        return None if each is None or each < 0 else RowCount(each) if each else 0
    if one is None or other is None or isinstance(one, RowCount) or isinstance(other, RowCount):
        return None
    return _OF_INTEGERS[operation](one, other)


_OF_INTEGERS: dict[str, Callable[[int, int], int | None]] = {
    "AddV2": operator.add,
    "Sub": operator.sub,
    "Maximum": max,
    "Minimum": min,
    "FloorMod": lambda one, other: one % other if other else None,
}
