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
# References to an array that only the pool has: its list, the loop's variable, and getrefcount's argument.
_ONLY_OURS = 3
_MOST = 512

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
        kept = _kept.setdefault(nbytes, [])
        for raw in kept:
            if sys.getrefcount(raw) == _ONLY_OURS:
                return raw
        raw = np.empty(nbytes, np.uint8)
        if sum(map(len, _kept.values())) < _MOST:
            kept.append(raw)
        return raw
