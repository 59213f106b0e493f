"""How the variables of an optimizer are divided: among parameter servers, and among workers that each update a part."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from syrtos.comm.communicator import Array, share_of
from syrtos.comm.objects import dtype_of
from syrtos.keras import state


@dataclasses.dataclass(frozen=True)
class Part:
    """Elements ``start`` to ``stop`` of a variable, counted flat, in the given shape.

    Attributes:
        variable: the number of the variable.
        whole: it is all of the variable.
    """

    variable: int
    start: int
    stop: int
    shape: tuple[int, ...]
    whole: bool = False

    def first_row(self) -> int:
        """Of a part that is made of rows: the number of its first row in the variable."""
        return self.start // int(np.prod(self.shape[1:]))

    def rows_of(self, values: Array, indices: Array) -> tuple[Array, Array]:
        """Those of some rows that lie here, counted from the first row here."""
        first = self.first_row()
        here = (indices >= first) & (indices < first + self.shape[0])
        return values[here], indices[here] - first


def evenly(variables: Sequence[Any], tables: set[int], count: int) -> list[list[Part]]:
    """An equal part of every variable for each of ``count``: rows of ``tables``, and else elements."""
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


def by_variable(variables: Sequence[Any], count: int) -> list[list[Part]]:
    """Each variable for one of ``count``: the largest first, each to the one that has the fewest bytes."""
    sizes = [int(np.prod(v.shape)) for v in variables]
    parts: list[list[Part]] = [[] for _ in range(count)]
    held = [0] * count
    for i in sorted(range(len(variables)), key=lambda i: -sizes[i]):
        number = held.index(min(held))
        parts[number].append(Part(i, 0, sizes[i], tuple(variables[i].shape), True))
        held[number] += sizes[i] * dtype_of(state.dtype_name(variables[i])).itemsize
    return parts
