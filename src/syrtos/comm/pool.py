"""Arrays for results, used again once nobody holds them.

A new array of many megabytes costs a page fault for each of its pages, and TensorFlow takes a NumPy array as it is only where its
memory is aligned; otherwise it copies. Both cost as much as the exchange itself.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from syrtos.comm.communicator import Array

# Smaller arrays come from the allocator's own free lists.
_LARGE = 1 << 16
# What TensorFlow asks of memory that it uses in place (EIGEN_MAX_ALIGN_BYTES).
_ALIGN = 64
_lock = threading.Lock()
_kept: dict[int, list[np.ndarray[Any, Any]]] = {}


def empty_like(array: Array) -> Array:
    """An uninitialized flat array of the same size and dtype. Views of it keep it from being used again."""
    if array.nbytes < _LARGE:
        return np.empty_like(array)
    raw = _take(array.nbytes + _ALIGN)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + array.nbytes].view(array.dtype)


def _take(nbytes: int) -> np.ndarray[Any, Any]:
    """Memory that nobody uses: every view counts as a reference to the array that owns it."""
    with _lock:
        size = _size_class(nbytes)
        kept = _kept.setdefault(size, [])
        for raw, references in zip(kept, _references(kept), strict=True):
            if references == _ONLY_OURS:
                return raw
        kept.append(np.empty(size, np.uint8))
        return kept[-1]


def _size_class(nbytes: int) -> int:
    """Eight sizes for each power of two: memory for one size serves its neighbours, and varying sizes don't pile up."""
    step = 1 << max(nbytes.bit_length() - 4, 0)
    return -(-nbytes // step) * step


def _references(kept: list[np.ndarray[Any, Any]]) -> list[int]:
    return [sys.getrefcount(raw) for raw in kept]


# What `_references` counts for an array that nobody but its list has; versions of Python differ.
_ONLY_OURS = _references([np.empty(1, np.uint8)])[0]
