"""The engine that exchanges by MPI (MPICH through mpi4py) between workers on one or many hosts."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from syrtos.comm import pool
from syrtos.comm.arrays import UFUNC, Array, Bounds, ReduceOp, is_half, scaled_copy
from syrtos.comm.communicator import Communicator
from syrtos.comm.watchdog import Watchdog
from syrtos.errors import ConfigurationError

_OPS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.MEAN: MPI.SUM,
    ReduceOp.PRODUCT: MPI.PROD,
}


# Over a 1 Gbit/s link one long call reached 87-95 % of what pieces in flight do: the wire idles
# while it adds.
PIECE = 4 << 20
IN_FLIGHT = 4
# Bytes that go to each worker at once where each gets others: over 1 Gbit/s, 100 MB between two
# took 445 ms so, and 1.7-2 s in pieces of 2 MB.
_TO_EACH = 128 << 10


class MPICommunicator(Communicator):
    """Exchanges over an MPI communicator with non-blocking calls.

    Waiting therefore leaves the core to others.
    """

    def __init__(self, comm: MPI.Comm, watchdog: Watchdog | None = None) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self.comm = comm
        self.watchdog = watchdog or Watchdog()
        self._process = os.getpid()
        self._unfinished: list[MPI.Request] = []
        # A meeting that this worker has begun, and may have left early, and its buffers: MPI writes
        # into them later.
        self._left: tuple[MPI.Request, Array, Array] | None = None

    def split(self, color: int) -> MPICommunicator:
        return type(self)(self.comm.Split(color, self.rank), self.watchdog)

    def close(self) -> None:
        self.comm.Free()

    def wait(self, request: MPI.Request, call: str) -> None:
        """Waits for a request of this communicator under the watchdog."""
        try:
            self.watchdog.wait(request.Test, call, self.rank)
        except BaseException:
            # it holds the arrays that MPI may still write to: they must not be used again
            self._unfinished.append(request)
            raise

    def sum_in_place(self, array: Array, op: ReduceOp = ReduceOp.SUM) -> None:
        """Reduces a contiguous array over the group, in place."""
        flat, step = array.reshape(-1), max(PIECE // array.itemsize, 1)
        pieces = [flat[start : start + step] for start in range(0, flat.size, step)]
        _in_flight([functools.partial(self.start_sum, piece, op) for piece in pieces])

    def start_sum(self, array: Array, op: ReduceOp) -> Callable[[], None]:
        """Begins to reduce a flat array in place; it is done when the returned function returns."""
        if self.size == 1 or array.size == 0:
            return lambda: None
        # MPI leaves open what becomes of NaN, and workers got different results
        if op in (ReduceOp.MIN, ReduceOp.MAX):
            everyone = self._allgather(array, [array.size] * self.size).reshape(self.size, -1)
            UFUNC[op].reduce(everyone, axis=0, out=array)
            return lambda: None
        request = self.comm.Iallreduce(MPI.IN_PLACE, array, _OPS[op])
        return lambda: self.wait(request, f"allreduce of {array.nbytes} bytes")

    def _meet(
        self, tag: int, value: float, call: str, until: Callable[[], bool] | None = None
    ) -> tuple[list[int], list[float]]:
        # It has a copy of the worker's end of MPI's connections, and would speak in its place.
        if os.getpid() != self._process:
            raise ConfigurationError(
                f"The script has forked this process from rank {self.rank} (process"
                f" {self._process}), e.g. by `multiprocessing`, and it calls what all workers call"
                f" together ({call}). Train, evaluate and predict in the worker itself; or start"
                ' the process by `multiprocessing.get_context("spawn")`, in which it computes alone.'
            )
        if not self._is_over(call, until):
            return [], []
        mine = np.array([tag, value], np.float64)
        everyone = np.empty((self.size, 2), np.float64)
        self._left = self.comm.Iallgather(mine, everyone), mine, everyone
        if not self._is_over(call, until):
            return [], []
        return everyone[:, 0].astype(np.int64).tolist(), everyone[:, 1].tolist()

    def _is_over(self, call: str, until: Callable[[], bool] | None) -> bool:
        """Waits for the end of the meeting that this worker has begun, if any, or for ``until()``.

        Returns:
            Whether the meeting is over.
        """
        if self._left is None:
            return True
        request = self._left[0]
        if until is None:
            self.wait(request, call)
        else:
            self.watchdog.wait(lambda: request.Test() or until(), call, self.rank)
            if not request.Test():
                return False
        self._left = None
        return True

    def _reduce(
        self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float], lend: bool = False
    ) -> list[Array]:
        results = []
        for part in parts:
            result = pool.empty_like(part)
            scaled_copy(part, shares[self.rank], result)
            self.sum_in_place(result, op)
            results.append(result)
        return results

    def _allgather(self, array: Array, rows: Sequence[int]) -> Array:
        return self._start_allgather(array, rows)()

    def _start_allgather(self, array: Array, rows: Sequence[int]) -> Callable[[], Array]:
        """Begins to gather; the returned function waits for the result."""
        result = np.empty((sum(rows), *array.shape[1:]), array.dtype)
        row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        counts = [n * row_bytes for n in rows]
        request = self.comm.Iallgatherv(
            as_bytes(array), [as_bytes(result), counts, _starts(counts), MPI.BYTE]
        )
        return self._finisher(request, result, f"allgather of {result.nbytes} bytes")

    def _finisher(self, request: MPI.Request, result: Array, call: str) -> Callable[[], Array]:
        """Returns a function that waits for a request and returns its result.

        The function keeps the arrays that MPI writes.
        """

        def finish() -> Array:
            self.wait(request, call)
            return result

        return finish

    def _reduce_to_parts(
        self, wholes: Sequence[Array], bounds: Bounds, shares: Sequence[float]
    ) -> list[Array]:
        if is_half(wholes[0].dtype):
            return super()._reduce_to_parts(wholes, bounds, shares)
        scaled = []
        for whole in wholes:
            scaled.append(pool.empty_like(whole))
            scaled_copy(whole, shares[self.rank], scaled[-1])
        return self.sum_parts(scaled, bounds)

    def sum_parts(self, wholes: Sequence[Array], bounds: Bounds) -> list[Array]:
        """Returns this worker's part of each array, summed over the group in the order of ranks."""
        sent = [_part(wholes, bounds, rank) for rank in range(self.size)]
        result, step = np.empty_like(sent[self.rank]), _TO_EACH // wholes[0].itemsize

        def start(begin: int) -> Callable[[], None]:
            pieces = [part[begin : begin + step] for part in sent]
            target = result[begin : begin + step]
            lengths = [len(piece) for piece in pieces]
            finish = self._start_alltoall(
                np.concatenate(pieces), lengths, [len(target)] * self.size
            )

            def land() -> None:
                np.add.reduce(finish().reshape(self.size, -1), axis=0, out=target)

            return land

        _in_flight(
            [functools.partial(start, begin) for begin in range(0, max(map(len, sent)), step)]
        )
        return np.split(
            result,
            np.cumsum([stop - start for start, stop in (ranges[self.rank] for ranges in bounds)])[
                :-1
            ],
        )

    def _gather_parts(self, wholes: Sequence[Array], bounds: Bounds) -> None:
        """Gathers the parts in pieces, of which `IN_FLIGHT` are under way at once."""
        mine = _part(wholes, bounds, self.rank)
        counts = [
            sum(stop - start for start, stop in ranges) for ranges in zip(*bounds, strict=True)
        ]
        parts = [
            mine if rank == self.rank else np.empty(count, mine.dtype)
            for rank, count in enumerate(counts)
        ]
        step = max(PIECE // mine.itemsize // self.size, 1)

        def start(begin: int) -> Callable[[], None]:
            lengths = [len(part[begin : begin + step]) for part in parts]
            finish = self._start_allgather(mine[begin : begin + step], lengths)

            def land() -> None:
                for part, piece in zip(
                    parts, np.split(finish(), np.cumsum(lengths)[:-1]), strict=True
                ):
                    part[begin : begin + step] = piece

            return land

        _in_flight([functools.partial(start, begin) for begin in range(0, max(counts), step)])
        for rank, part in enumerate(parts):
            at = 0
            for whole, ranges in zip(wholes, bounds, strict=True) if rank != self.rank else ():
                first, last = ranges[rank]
                whole[first:last] = part[at : at + last - first]
                at += last - first

    def _broadcast(self, array: Array, root: int) -> Array:
        self.wait(self.comm.Ibcast(as_bytes(array), root), f"broadcast of {array.nbytes} bytes")
        return array

    def _alltoall(self, array: Array, sent: Sequence[int], received: Sequence[int]) -> Array:
        return self._start_alltoall(array, sent, received)()

    def _start_alltoall(
        self, array: Array, sent: Sequence[int], received: Sequence[int]
    ) -> Callable[[], Array]:
        """Begins to exchange groups of rows; the returned function waits for the result."""
        result = np.empty((sum(received), *array.shape[1:]), array.dtype)
        row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        out, into = [n * row_bytes for n in sent], [n * row_bytes for n in received]
        request = self.comm.Ialltoallv(
            [as_bytes(array), out, _starts(out), MPI.BYTE],
            [as_bytes(result), into, _starts(into), MPI.BYTE],
        )
        return self._finisher(request, result, f"alltoall of {result.nbytes} bytes")


def _part(wholes: Sequence[Array], bounds: Bounds, rank: int) -> Array:
    """Returns a worker's parts of all arrays, one after the other."""
    return np.concatenate(
        [whole[slice(*ranges[rank])] for whole, ranges in zip(wholes, bounds, strict=True)]
    )


def _in_flight(starts: Sequence[Callable[[], Callable[[], None]]]) -> None:
    """Begins exchanges one after the other, and ends all.

    At most `IN_FLIGHT` of them are under way at once.
    """
    flying: list[Callable[[], None]] = []
    for start in starts:
        if len(flying) == IN_FLIGHT:
            flying.pop(0)()
        flying.append(start())
    for finish in flying:
        finish()


def as_bytes(array: Array) -> Array:
    """Returns a contiguous array's memory as bytes."""
    return array.reshape(-1).view(np.uint8)


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(counts)[:-1].tolist()]
