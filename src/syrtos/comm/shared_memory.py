"""Workers of one host: MPI shared windows, in which each worker reduces a slice of its own.

A window is the memory model of MPI 3 (MPI-4.1 standard, §12.4 "unified"): every worker maps the segments of all. One
exchange copies the gradients in once, sums, and copies out once; there is no leader, and no worker is idle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from syrtos.comm import pool
from syrtos.comm.communicator import UFUNC, Array, ReduceOp, scaled_copy, share_of
from syrtos.comm.mpi import IN_FLIGHT, PIECE, MPICommunicator
from syrtos.comm.watchdog import Watchdog
from syrtos.errors import SharedMemoryError

# Elements summed in one go: small enough that every worker's piece stays in the second-level cache.
_PIECE = 1 << 18
_ALIGN = 64
# Below this (bytes), MPI's own tuned path for short messages is faster than three meetings.
_SHORT = 1 << 13

Carry = Callable[[Array], Callable[[], None]]


class SharedMemoryCommunicator(MPICommunicator):
    """Exchanges between the workers of one host. All of them must share memory."""

    def __init__(self, comm: MPI.Comm, watchdog: Watchdog | None = None) -> None:
        super().__init__(comm, watchdog)
        self._window: MPI.Win | None = None
        self._segments: list[Array] = []
        self._capacity = 0

    def close(self) -> None:
        self._free_window()
        super().close()

    def _reduce(self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float]) -> list[Array]:
        if sum(part.nbytes for part in parts) <= _SHORT:
            return super()._reduce(parts, op, shares)
        return self.reduce_through_window(parts, op, shares[self.rank], self.size)

    def _reduce_half(self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float]) -> list[Array]:
        return self.in_float32(self._reduce, parts, op, shares)

    def reduce_through_window(
        self, parts: Sequence[Array], op: ReduceOp, share: float, lanes: int, carry: Carry | None = None
    ) -> list[Array]:
        """Reduces flat parts of one dtype.

        Args:
            parts: this worker's values.
            op: the reduction.
            share: factor for this worker's values.
            lanes: into how many slices the elements are cut; worker ``i < lanes`` reduces slice ``i``.
            carry: begins to carry a reduced slice on between hosts, and returns what waits for the end of that.
        """
        layout = _Layout(parts)
        self._reserve(layout.total * layout.dtype.itemsize)
        views = [segment[: layout.total * layout.dtype.itemsize].view(layout.dtype) for segment in self._segments]
        if self.size == 2 and carry is None:
            return self._sum_of_two(views, layout, op, share)
        results = [pool.empty_like(part) for part in parts]
        flying: list[tuple[int, int, Callable[[], None]]] = []
        for begin, end in _chunks(layout, lanes, carry):
            layout.copy(parts, views[self.rank], begin, end, lambda part, view: scaled_copy(part, share, view))
            self._pause()
            flying.append((begin, end, self._reduce_lane(views, begin, end, op, lanes, carry)))
            if len(flying) == IN_FLIGHT:
                self._land(flying.pop(0), layout, results, views[0])
        for chunk in flying:
            self._land(chunk, layout, results, views[0])
        return results

    def _reduce_lane(
        self, views: list[Array], begin: int, end: int, op: ReduceOp, lanes: int, carry: Carry | None
    ) -> Callable[[], None]:
        """Reduces this worker's slice of a chunk; returns what waits until the other hosts' part is in it."""
        if self.rank >= lanes:
            return lambda: None
        start, stop = share_of(end - begin, self.rank, lanes)
        _reduce_slice(views, begin + start, begin + stop, op)
        return carry(views[0][begin + start : begin + stop]) if carry else lambda: None

    def _land(
        self, chunk: tuple[int, int, Callable[[], None]], layout: _Layout, results: Sequence[Array], total: Array
    ) -> None:
        begin, end, finish = chunk
        finish()
        self._pause()
        layout.copy(results, total, begin, end, np.copyto)

    def _sum_of_two(self, views: list[Array], layout: _Layout, op: ReduceOp, share: float) -> list[Array]:
        """Two workers each write the whole result: less traffic than half the sum and a copy of the other half."""
        layout.copy(layout.parts, views[self.rank], 0, layout.total, lambda part, view: scaled_copy(part, share, view))
        self._pause()
        results = [pool.empty_like(part) for part in layout.parts]
        for result, offset in zip(results, layout.offsets, strict=True):
            first, second = (view[offset : offset + result.size] for view in views)
            UFUNC[op](first, second, out=result)
        return results

    def _pause(self) -> None:
        """A meeting inside one operation: all stores before it are seen by all loads after it."""
        assert self._window is not None
        self._window.Sync()
        self.wait(self.comm.Ibarrier(), "exchange in shared memory")
        self._window.Sync()

    def _reserve(self, nbytes: int) -> None:
        """Makes every worker's segment at least ``nbytes`` long; all workers ask for the same."""
        if nbytes <= self._capacity:
            return
        capacity = 1 << max(nbytes - 1, 4095).bit_length() if nbytes < 1 << 26 else nbytes
        self._check_room(capacity)
        self._free_window()
        self._window = MPI.Win.Allocate_shared(capacity, 1, comm=cast(MPI.Intracomm, self.comm))
        self._window.Lock_all()  # a passive epoch for the window's whole life: Sync needs one
        self._segments = [_segment(self._window, rank, capacity) for rank in range(self.size)]
        self._capacity = capacity

    def _check_room(self, capacity: int) -> None:
        """Touching a page that the file system can't back kills the process with SIGBUS: look first."""
        free = free_shared_memory() + self._capacity * self.size
        short = self.comm.allreduce(int(capacity * self.size > free), MPI.MAX)
        if short:
            raise SharedMemoryError(
                f"The exchange needs {capacity * self.size / 1e6:.0f} MB of shared memory for {self.size} workers, and "
                f"/dev/shm has {free / 1e6:.0f} MB. Give it more (`mount -o remount,size=8G /dev/shm`; docker: "
                "`--shm-size=8g`; Kubernetes: an emptyDir with medium Memory), or exchange in smaller groups "
                "with `--bucket-mb`."
            )

    def _free_window(self) -> None:
        self._segments = []
        if self._window is not None:
            self._window.Unlock_all()
            self._window.Free()
            self._window = None
            self._capacity = 0


def free_shared_memory() -> int:
    """Bytes that can still be taken from /dev/shm."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return 1 << 62
    return stat.f_bavail * stat.f_frsize


class _Layout:
    """The offset of each part in a segment, in elements, aligned for vector instructions."""

    def __init__(self, parts: Sequence[Array]) -> None:
        self.parts = parts
        self.dtype = parts[0].dtype
        step = max(_ALIGN // self.dtype.itemsize, 1)
        self.offsets: list[int] = []
        self.total = 0
        for part in parts:
            self.offsets.append(self.total)
            self.total += -(-part.size // step) * step

    def copy(
        self, parts: Sequence[Array], view: Array, begin: int, end: int, action: Callable[[Array, Array], None]
    ) -> None:
        """Calls ``action(piece of a part, the same of the segment)`` for what lies in ``[begin, end)``."""
        for part, offset in zip(parts, self.offsets, strict=True):
            low, high = max(begin, offset), min(end, offset + part.size)
            if low < high:
                action(part[low - offset : high - offset], view[low:high])


def _chunks(layout: _Layout, lanes: int, carry: Carry | None) -> Iterator[tuple[int, int]]:
    """All at once inside a host; between hosts in chunks, so that copies hide behind the wire."""
    step = max(lanes * PIECE // layout.dtype.itemsize, 1) if carry else max(layout.total, 1)
    for begin in range(0, layout.total, step):
        yield begin, min(begin + step, layout.total)


def _segment(window: MPI.Win, rank: int, capacity: int) -> Array:
    memory: Any = window.Shared_query(rank)[0]
    return np.frombuffer(memory, np.uint8, capacity)


def _reduce_slice(views: list[Array], start: int, stop: int, op: ReduceOp) -> None:
    """Reduces one slice of all segments into the first, in rank order, piece by piece."""
    for begin in range(start, stop, _PIECE):
        end = min(begin + _PIECE, stop)
        pieces = [view[begin:end] for view in views]
        for piece in pieces[1:]:
            UFUNC[op](pieces[0], piece, out=pieces[0])
