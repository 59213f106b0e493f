"""Arrays for results, in memory that is used again.

A new array of many megabytes costs a page fault for each of its pages, and TensorFlow takes a NumPy
array as it is only where its memory is aligned; otherwise it copies. Both cost as much as the
exchange itself.
"""

from __future__ import annotations

import collections
import threading
import time
import weakref

import numpy as np

from syrtos.comm.arrays import Array

# Bytes. Smaller arrays come from the allocator's own free lists.
_LARGE = 1 << 16
# The alignment of memory that TensorFlow uses in place (EIGEN_MAX_ALIGN_BYTES).
_ALIGN = 64
# Sizes of memory for each power of two, so that arrays of nearly the same size use the same memory
# in turn.
_STEPS = 8
# Memory is used for arrays down to half its size.
_FITTING = _STEPS + 1
# Seconds. The pool holds at most this multiple of what was in use at once in this period and the
# one before.
_PERIOD = 30.0
_SPARE = 2

# No array: NumPy would let a view depend on the memory itself, and not on the array made for it.
_Memory = memoryview


class Pool:
    """Memory for arrays, given back when the last view of an array is gone.

    An array's memory belongs to one NumPy array made for it, on which all its views depend (NumPy
    shortens chains of views to the array whose base is no array).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[int, _Lease] = {}
        self._returned: collections.deque[_Memory] = collections.deque()
        self._free: dict[int, collections.deque[tuple[int, _Memory]]] = {}
        self._kept = self._used = self._most = self._most_before = self._serial = 0
        self._period_began = time.monotonic()

    @property
    def nbytes(self) -> int:
        """The bytes that are held, in use or not."""
        return self._kept + self._used

    def empty_like(self, array: Array) -> Array:
        """Returns an uninitialized flat array of the same size and dtype."""
        if array.nbytes < _LARGE:
            return np.empty_like(array)
        memory = self._take(_size_number(array.nbytes))
        owner = np.frombuffer(memory, np.uint8, array.nbytes)
        # The end of this array gives the memory back: no reference is ever counted.
        lease = _Lease(owner, self._give_back)
        lease.memory = memory
        # A weak reference calls nothing once it is gone itself.
        self._leases[id(lease)] = lease
        return owner.view(array.dtype)

    def _give_back(self, lease: _Lease) -> None:
        """Takes back the memory of an array that has ended."""
        # Called in any thread, also inside of a garbage collection that this class has caused. So
        # it takes no lock.
        self._returned.append(lease.memory)
        del self._leases[id(lease)]

    def _take(self, number: int) -> _Memory:
        with self._lock:
            self._collect()
            memory = self._fitting(number)
            if memory is None:
                memory = _aligned_memory(_size_of(number))
            else:
                self._kept -= memory.nbytes
            self._used += memory.nbytes
            self._most = max(self._most, self._used)
            self._shrink()
            return memory

    def _fitting(self, number: int) -> _Memory | None:
        for larger in range(number, number + _FITTING):
            kept = self._free.get(larger)
            if kept:
                return kept.pop()[1]
        return None

    def _collect(self) -> None:
        """Takes in the memory that was given back."""
        while self._returned:
            memory = self._returned.popleft()
            self._serial += 1
            self._free.setdefault(_size_number(memory.nbytes), collections.deque()).append(
                (self._serial, memory)
            )
            self._kept += memory.nbytes
            self._used -= memory.nbytes

    def _shrink(self) -> None:
        """Frees memory above the limit, least recently used first."""
        now = time.monotonic()
        if now - self._period_began > _PERIOD:
            self._period_began, self._most_before, self._most = now, self._most, self._used
        limit = _SPARE * max(self._most, self._most_before)
        while self._kept and self.nbytes > limit:
            oldest = min(
                (kept for kept in self._free.values() if kept), key=lambda kept: kept[0][0]
            )
            self._kept -= oldest.popleft()[1].nbytes


class _Lease(weakref.ref[Array]):
    """A weak reference to an array, with the memory that the array had."""

    __slots__ = ("memory",)
    memory: _Memory


def _aligned_memory(nbytes: int) -> _Memory:
    raw = np.empty(nbytes + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + nbytes].data


def _size_number(nbytes: int) -> int:
    """Returns the number of the smallest size of memory that holds so many bytes."""
    power = (nbytes - 1).bit_length() - 1
    return power * _STEPS + ((nbytes - 1) * _STEPS >> power) - _STEPS + 1


def _size_of(number: int) -> int:
    power, step = divmod(number, _STEPS)
    return (1 << power) * (_STEPS + step) // _STEPS


_shared = Pool()


def empty_like(array: Array) -> Array:
    """Returns an uninitialized flat array of the same size and dtype, from this process's pool."""
    return _shared.empty_like(array)
