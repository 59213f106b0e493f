"""The numbers in values that a script holds, so that a value can be compared at two times."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from syrtos.keras.split.tensors import array_of, elements_of, is_tensor

# Containers with more elements, and arrays with more numbers, are data of the script, which a step
# reads and does not change.
LARGEST, _LARGEST_ARRAY = 10_000, 1_000_000

Numbers = npt.NDArray[np.float64] | None


def numbers_of(value: object) -> Numbers:
    """Returns a number, or the numbers of a tensor, an array, a list or a dictionary, as float64.

    The numbers of containers come as a vector, those of arrays and tensors in their shapes. None
    for values that hold no numbers, or too many, and for objects of an odd kind.
    """
    with contextlib.suppress(Exception):
        return _as_numbers(value)
    return None


def read_numbers(read: Callable[[], object]) -> Numbers:
    """Returns the numbers of what a function returns; None where it fails."""
    with contextlib.suppress(Exception):  # a variable of a function that holds nothing any more
        return numbers_of(read())
    return None


def plain_numbers(state: object) -> list[float]:
    """Returns Python's numbers in dictionaries, lists and tuples inside of each other, in order."""
    if isinstance(state, dict):
        return [number for value in state.values() for number in plain_numbers(value)]
    if isinstance(state, list | tuple):
        return [number for value in state for number in plain_numbers(value)]
    return [float(state)] if isinstance(state, int | float) else []


def _as_numbers(value: object) -> Numbers:
    if isinstance(value, dict):
        if len(value) > LARGEST:
            return None
        parts = [found.ravel() for found in map(numbers_of, value.values()) if found is not None]
        return np.concatenate(parts) if parts else None
    # Before its value is asked for: that may be copied from an accelerator.
    if is_tensor(value) and elements_of(value) > _LARGEST_ARRAY:
        return None
    if isinstance(value, list | tuple | collections.deque):
        if len(value) > LARGEST or sum(map(elements_of, value)) > _LARGEST_ARRAY:
            return None
        if all(isinstance(one, int | float | np.generic) for one in value):
            return np.asarray([float(one) for one in value], np.float64)
        parts = [numbers_of(one) for one in value]
        found = [part.ravel() for part in parts if part is not None]
        # A list with other elements among its numbers is none of numbers.
        return np.concatenate(found) if len(found) == len(parts) else None
    if is_tensor(value):
        value = array_of(value)
    if isinstance(value, int | float | np.generic | np.ndarray):
        found = np.asarray(value)
        return (
            found.astype(np.float64)
            if found.dtype.kind in "fiub" and found.size <= _LARGEST_ARRAY
            else None
        )
    return None
