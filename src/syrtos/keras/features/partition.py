"""Divides an optimizer's variables among parameter servers, or workers that each update a part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from syrtos.comm.communicator import Array, share_of
from syrtos.comm.objects import dtype_of
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.keras.protocols import Variable


@dataclasses.dataclass(frozen=True)
class Part:
    """Elements ``start`` to ``stop`` of a variable, counted flat, in the given shape.

    Attributes:
        variable: the number of the variable.
        whole: whether it is all of the variable.
    """

    variable: int
    start: int
    stop: int
    shape: tuple[int, ...]
    whole: bool = False

    def first_row(self) -> int:
        """Returns the number of the variable's row with which this part, made of rows, begins."""
        return self.start // int(np.prod(self.shape[1:]))

    def rows_of(self, values: Array, indices: Array) -> tuple[Array, Array]:
        """Returns the rows that lie in this part, and their indices counted from its first row."""
        first = self.first_row()
        here = (indices >= first) & (indices < first + self.shape[0])
        return values[here], indices[here] - first


def divide_evenly(variables: Sequence[Variable], tables: set[int], count: int) -> list[list[Part]]:
    """Divides every variable into ``count`` equal parts: ``tables`` by rows, others by elements.

    Returns:
        For each of ``count`` its parts, one of every variable.
    """
    return [
        [_slice(i, tuple(v.shape), i in tables, number, count) for i, v in enumerate(variables)]
        for number in range(count)
    ]


def _slice(variable: int, shape: tuple[int, ...], by_rows: bool, number: int, count: int) -> Part:
    if by_rows:
        width = int(np.prod(shape[1:]))
        first, last = share_of(shape[0], number, count)
        return Part(variable, first * width, last * width, (last - first, *shape[1:]))
    start, stop = share_of(int(np.prod(shape)), number, count)
    return Part(variable, start, stop, (stop - start,))


def by_variable(variables: Sequence[Variable], count: int) -> list[list[Part]]:
    """Gives each variable to one of ``count``, the largest first, to the one with the fewest bytes.

    Returns:
        For each of ``count`` its variables, as parts.
    """
    sizes = [math.prod(v.shape) for v in variables]
    parts: list[list[Part]] = [[] for _ in range(count)]
    held = [0] * count
    for i in sorted(range(len(variables)), key=lambda i: -sizes[i]):
        number = held.index(min(held))
        parts[number].append(Part(i, 0, sizes[i], tuple(variables[i].shape), True))
        held[number] += sizes[i] * dtype_of(state.dtype_name(variables[i])).itemsize
    return parts
