"""Exchanges between workers of one host, in memory that they share.

Each worker reduces a slice of its own. An exchange copies each worker's gradients in once, but for
the slice that it reduces itself, which it adds from where they are; there is no leader, and no
worker is idle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from syrtos.comm import pool, segments
from syrtos.comm.arrays import UFUNC, Array, Bounds, ReduceOp, scaled_copy, share_of
from syrtos.comm.communicator import Communicator
from syrtos.comm.mpi import IN_FLIGHT, PIECE, MPICommunicator
from syrtos.comm.watchdog import Watchdog
from syrtos.comm.windows import Windows

# Elements reduced in one go: small enough that a piece stays in the second-level cache.
_PIECE = 1 << 16
_ALIGN = 64
# Below this (bytes), MPI's own tuned path for short messages is faster than three meetings.
_SHORT = 1 << 13
# Below this (bytes), a result is copied: TensorFlow's own allocator is as fast.
_LENT = 1 << 16

Carry = Callable[[Array], Callable[[], None]]


class SharedMemoryCommunicator(MPICommunicator):
    """A communicator between the workers of one host. All of them must share memory."""

    def __init__(self, comm: MPI.Comm, watchdog: Watchdog | None = None) -> None:
        super().__init__(comm, watchdog)
        self._windows: Windows | None = None
        # for each worker what it contributes to others' slices, and cannot write into the result
        self._stages: list[Array] = []
        self._scratch = np.empty(0, np.uint8)  # a result that is copied

    def close(self) -> None:
        self._windows, self._stages, self._scratch = None, [], np.empty(0, np.uint8)
        super().close()

    def _reduce(
        self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float], lend: bool = False
    ) -> list[Array]:
        if sum(part.nbytes for part in parts) <= _SHORT:
            return super()._reduce(parts, op, shares)
        return self.reduce_through_window(parts, op, shares[self.rank], self.size, lend=lend)

    def _reduce_half(
        self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float]
    ) -> list[Array]:
        return self.in_float32(self._reduce, parts, op, shares)

    def _reduce_to_parts(
        self, wholes: Sequence[Array], bounds: Bounds, shares: Sequence[float]
    ) -> list[Array]:
        return Communicator._reduce_to_parts(self, wholes, bounds, shares)

    def _gather_parts(self, wholes: Sequence[Array], bounds: Bounds) -> None:
        """Gathers the parts in pieces, which stay in the caches."""
        longest = max(stop - start for ranges in bounds for start, stop in ranges)
        board = self._scratch_memory(2 * self.size * _PIECE, wholes[0].dtype).reshape(
            2, self.size, _PIECE
        )
        turn = 0
        for whole, ranges in zip(wholes, bounds, strict=True):
            for begin in range(0, longest, _PIECE):
                pieces = [
                    (min(start + begin, stop), min(start + begin + _PIECE, stop))
                    for start, stop in ranges
                ]
                if all(start == stop for start, stop in pieces):
                    break
                start, stop = pieces[self.rank]
                # the others have read the other half before they come to the next meeting
                turn = 1 - turn
                board[turn, self.rank, : stop - start] = whole[start:stop]
                self._pause()
                for rank, (start, stop) in enumerate(pieces):
                    if rank != self.rank:
                        whole[start:stop] = board[turn, rank, : stop - start]

    def reduce_through_window(
        self,
        parts: Sequence[Array],
        op: ReduceOp,
        share: float,
        lanes: int,
        carry: Carry | None = None,
        lend: bool = False,
    ) -> list[Array]:
        """Reduces flat parts of one dtype.

        Args:
            parts: this worker's values.
            op: the reduction.
            share: factor for this worker's values.
            lanes: the number of slices into which the elements are cut; worker ``i < lanes``
                reduces slice ``i``.
            carry: begins to carry a reduced slice on between hosts, and returns a function that
                waits for the end of that.
            lend: whether the results may be memory that all workers of the host look at; they can't
                be written to.
        """
        layout = _Layout(parts)
        # The gaps between two parts are added too, and may hold anything.
        with np.errstate(all="ignore"):
            return self._reduce_in(layout, op, share, lanes, carry, lend)

    def _reduce_in(
        self,
        layout: _Layout,
        op: ReduceOp,
        share: float,
        lanes: int,
        carry: Carry | None,
        lend: bool,
    ) -> list[Array]:
        total, is_lent = self._result_memory(layout, lend)
        results = [] if is_lent else [pool.empty_like(part) for part in layout.parts]
        flying: list[tuple[int, int, Callable[[], None]]] = []
        for begin, end in _chunks(layout, lanes, carry):
            slices = [
                tuple(begin + at for at in share_of(end - begin, lane, lanes))
                for lane in range(lanes)
            ]
            self._contribute(layout, total, slices, share)
            self._pause()
            flying.append((begin, end, self._reduce_lane(layout, total, slices, op, share, carry)))
            while len(flying) == IN_FLIGHT:
                self._land(flying.pop(0), layout, total, results)
        for chunk in flying:
            self._land(chunk, layout, total, results)
        return layout.lend_parts(total) if is_lent else results

    def _result_memory(self, layout: _Layout, lend: bool) -> tuple[Array, bool]:
        """Returns the memory in which the result is made, and whether the result can stay there."""
        nbytes = layout.total * layout.dtype.itemsize
        # Of two workers each writes its one summand into the result itself.
        if self.size > 2 and (not self._stages or len(self._stages[0]) < nbytes):
            self._stages = [
                np.frombuffer(segments.create(self.comm, _round_up(nbytes)), np.uint8)
                for _ in range(self.size)
            ]
        if lend and nbytes >= _LENT:
            self._windows = self._windows or Windows(self.comm, self._pause)
            window = self._windows.take(nbytes)
            if window is not None:
                return window.view(layout.dtype), True
        return self._scratch_memory(layout.total, layout.dtype), False

    def _scratch_memory(self, elements: int, dtype: np.dtype[Any]) -> Array:
        """Returns memory in which results are made that are copied from there."""
        nbytes = elements * dtype.itemsize
        if len(self._scratch) < nbytes:
            self._scratch = np.frombuffer(segments.create(self.comm, _round_up(nbytes)), np.uint8)
        return self._scratch[:nbytes].view(dtype)

    def _contribute(
        self, layout: _Layout, total: Array, slices: Sequence[tuple[int, ...]], share: float
    ) -> None:
        """Copies this worker's part of the slices that other workers reduce.

        For each slice one worker copies into the result, and the others beside it.
        """
        for lane, (start, stop) in enumerate(slices):
            if lane == self.rank:
                continue
            target = (
                total
                if self.rank == self._first_summand(lane)
                else self._stages[self.rank][: total.nbytes].view(total.dtype)
            )
            layout.copy(
                layout.parts, target, start, stop, lambda part, view: scaled_copy(part, share, view)
            )

    def _reduce_lane(
        self,
        layout: _Layout,
        total: Array,
        slices: Sequence[tuple[int, ...]],
        op: ReduceOp,
        share: float,
        carry: Carry | None,
    ) -> Callable[[], None]:
        """Reduces this worker's slice of a chunk.

        Returns:
            A function that waits until the other hosts' part is in the slice.
        """
        if self.rank >= len(slices):
            return lambda: None
        start, stop = slices[self.rank]
        first = self._first_summand(self.rank)
        own = scaled_copy if first == self.rank else functools.partial(_reduce_scaled, op)
        stages = [stage[: total.nbytes].view(total.dtype) for stage in self._stages]
        for begin in range(start, stop, _PIECE):
            end = min(begin + _PIECE, stop)
            for rank in range(self.size):
                if rank == self.rank:
                    layout.copy(
                        layout.parts, total, begin, end, lambda part, view: own(part, share, view)
                    )
                elif rank != first:
                    UFUNC[op](total[begin:end], stages[rank][begin:end], out=total[begin:end])
        return carry(total[start:stop]) if carry else lambda: None

    def _first_summand(self, lane: int) -> int:
        """Returns the worker whose part of a slice the others' parts are added to."""
        # Of two workers the one that does not reduce the slice. Of more the first, so that sums are
        # in the order of ranks, and do not depend on where a number stands.
        return 1 - lane if self.size == 2 else 0

    def _land(
        self,
        chunk: tuple[int, int, Callable[[], None]],
        layout: _Layout,
        total: Array,
        results: Sequence[Array],
    ) -> None:
        begin, end, finish = chunk
        finish()
        self._pause()
        if results:
            layout.copy(results, total, begin, end, np.copyto)

    def _pause(self) -> None:
        """Meets the other workers inside one operation.

        All stores before it are seen by all loads after it.
        """
        # Loads and stores need no other order: MPI passes messages inside a host by atomic
        # operations with acquire and release (MPICH 5, `MPL_atomic`), so what a worker has stored
        # before a message is seen by all that have received it.
        self.wait(self.comm.Ibarrier(), "exchange in shared memory")


def _round_up(nbytes: int) -> int:
    """Returns the size that memory for ``nbytes`` bytes is made with."""
    # Rounded up: for results that grow a little each time memory is not made anew each time.
    return 1 << (nbytes - 1).bit_length() if nbytes < 1 << 26 else nbytes


def _reduce_scaled(op: ReduceOp, source: Array, share: float, target: Array) -> None:
    """Sets ``target = target op share * source``.

    A share of 0 adds nothing even where the source is NaN.
    """
    if share == 1.0:
        UFUNC[op](target, source, out=target)
    elif share != 0.0:
        UFUNC[op](target, np.multiply(source, source.dtype.type(share)), out=target)


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

    def lend_parts(self, total: Array) -> list[Array]:
        """Returns the parts of a result that is lent, which nobody may write to."""
        total.flags.writeable = False
        found = [
            total[offset : offset + part.size]
            for part, offset in zip(self.parts, self.offsets, strict=True)
        ]
        # a small one that is kept would keep all
        return [part if part.nbytes >= _LENT else part.copy() for part in found]

    def copy(
        self,
        parts: Sequence[Array],
        view: Array,
        begin: int,
        end: int,
        action: Callable[[Array, Array], None],
    ) -> None:
        """Calls ``action(piece of a part, its place in the segment)`` within ``[begin, end)``."""
        for part, offset in zip(parts, self.offsets, strict=True):
            low, high = max(begin, offset), min(end, offset + part.size)
            if low < high:
                action(part[low - offset : high - offset], view[low:high])


def _chunks(layout: _Layout, lanes: int, carry: Carry | None) -> Iterator[tuple[int, int]]:
    """Yields the bounds of chunks: a single one inside a host, several between hosts."""
    # between hosts in chunks, so that copies hide behind the wire
    step = max(lanes * PIECE // layout.dtype.itemsize, 1) if carry else max(layout.total, 1)
    for begin in range(0, layout.total, step):
        yield begin, min(begin + step, layout.total)
