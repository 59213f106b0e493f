"""The comparison of what one process and all workers compute, for `syrtos verify`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from syrtos.comm.communicator import Array
from syrtos.keras import keras_internals

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model

# The largest relative difference that rounding explains, by the bytes of the least precise dtype
# that a model computes with.
_ROUNDING = {8: 1e-4, 4: 1e-4, 2: 5e-2}
# A difference of a variable that counts as none, relative to its value in float32.
_OF_VALUE = 5e-7
# A difference of a gradient that counts as none, relative to all of them.
_NEAR_ZERO = 1e-6
# How many times larger a value is that stands for none, as `best = 1e9`, than those that come.
_STAND_IN = 1e6


@dataclasses.dataclass
class Row:
    """A number, gradient or variable of the first batch, computed both ways.

    `syrtos verify` shows it as a row of its table.

    Attributes:
        kind: ``gradient``, ``log``, ``output``, ``variable`` or ``operation``.
        name: a name for a person.
        whole, split: its value, or its norm, computed from some rows together and from parts of
            them.
        difference: the relative difference of the two.
    """

    kind: str
    name: str
    whole: float
    split: float
    difference: float


def bound_of(precision: int) -> float:
    """Returns the largest relative difference that counts as none.

    ``precision``: the bytes of the least precise dtype that the model computes with.
    """
    return _ROUNDING[precision]


def compare_gradients(
    names: Sequence[str], one: Sequence[Array], other: Sequence[Array]
) -> list[Row]:
    """Returns the rows of `syrtos verify`'s table for gradients.

    Of a gradient near zero, such as that of a bias before a BatchNormalization, only rounding is left.
    """
    squares = [float(np.square(np.asarray(each, np.float64)).sum()) for each in one]
    allowed = max(1e-7, _NEAR_ZERO * float(np.sqrt(sum(squares))))
    return [
        Row("gradient", name, size_of(a), size_of(b), distance(a, b, allowed))
        for name, a, b in zip(names, one, other, strict=True)
    ]


def compare_values(
    kind: str, name: str, one: Array, other: Array, before: Array | None = None
) -> Row:
    """Returns a row of `syrtos verify`'s table; with ``before`` variables' changes are compared."""
    far = distance(one, other) if before is None else distance_of_changes(before, one, other)
    return Row(kind, name, size_of(one), size_of(other), far)


def size_of(value: Array) -> float:
    """Returns a number itself, or the norm of an array."""
    return (
        float(value)
        if np.ndim(value) == 0
        else float(np.linalg.norm(np.asarray(value, np.float64)))
    )


def distance_of_changes(before: Array, one: Array, other: Array) -> float:
    """Returns the difference of two changes of a variable, relative to the first.

    A difference that rounding makes of the variable itself counts as none.
    """
    if np.shape(one) != np.shape(other) or np.shape(before) != np.shape(one):
        return distance(one, other)
    start, one, other = (np.asarray(value, np.float64) for value in (before, one, other))
    # A best that begins at infinity, or at a billion: beside such a change the values themselves
    # would not be seen.
    far_from_both = np.abs(start) > _STAND_IN * np.maximum(np.abs(one), np.abs(other))
    start = np.where(far_from_both | ~np.isfinite(start), 0.0, start)
    return distance(one - start, other - start, _OF_VALUE * float(np.linalg.norm(one)))


def distance(one: Array, other: Array, allowed: float = 1e-7) -> float:
    """Returns the relative difference by norm.

    Equal infinities and NaN count as equal, and a difference of up to ``allowed`` as none.
    """
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if a.shape != b.shape:
        return float("inf")
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    difference = float(np.linalg.norm(a[finite] - b[finite]))
    size = float(np.linalg.norm(a[finite]))
    if difference <= allowed:
        return min(difference / size, allowed) if size else 0.0
    return difference / size if size else float("inf")


def precision_of(model: Model) -> int:
    """Returns the bytes of the model's least precise layer dtype; 4 where none is floating."""
    names = [
        str(getattr(layer, "compute_dtype", None) or "float32")
        for layer in keras_internals.layers_of(model)
    ]
    found = [re.search(r"float(\d+)", name) for name in names]
    return min((int(match[1]) // 8 for match in found if match), default=4)


def names_of(logs: object, numbers: Sequence[object]) -> list[str]:
    """Returns the keys under which a step returns its numbers; others are numbered from 1."""
    # By identity: tensors can't be compared by `==`, and equal numbers have names of their own.
    keys = {id(value): str(name) for name, value in logs.items()} if isinstance(logs, dict) else {}
    return [keys.get(id(number), str(index + 1)) for index, number in enumerate(numbers)]
