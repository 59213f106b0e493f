"""The interface for exchanges of tensors between workers: everything above uses it alone."""

from __future__ import annotations

import abc
import functools
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from syrtos.comm import adasum
from syrtos.comm.arrays import (
    UFUNC,
    Array,
    Bounds,
    ReduceOp,
    check_reducible,
    contiguous,
    is_half,
    narrow,
    scaled_copy,
    share_of,
    signature,
)
from syrtos.comm.background import Background
from syrtos.comm.objects import from_bytes, to_bytes
from syrtos.comm.tags import Tags, of_call, of_passing
from syrtos.errors import ExchangeError, OutOfStepError
from syrtos.observe import trace

Reduce = Callable[[Sequence[Array], ReduceOp, Sequence[float]], list[Array]]
# Bytes of 16-bit floats that are summed at once.
_PIECE_OF_HALVES = 1 << 20
# The calls that workers which have joined can take part in.
_FOLLOWED = re.compile(
    r"exchange |allreduce (sum|mean|adasum) |allgather \w+ \(|broadcast from (\d+)"
    r" |barrier$|tensor "
)


class Communicator(abc.ABC):
    """A group of workers that exchange arrays.

    Every operation is called by all workers of the group, in the same order. Each begins with a
    check that all workers make the same call: workers that call different operations, or the same
    one with arrays that don't fit, all get an `OutOfStepError` that lists each rank's call, instead
    of waiting for each other. Results are bitwise equal on every worker, and in every run with the
    same world.

    Arrays are NumPy's, C-contiguous or made so. 16-bit floats (``bfloat16`` as ``ml_dtypes`` has
    it) travel as such, and are summed in float32: the sum is rounded once, and between hosts each
    host's part once more.

    Attributes:
        rank: this worker's number in the group.
        size: the number of workers in the group.
        meetings: operations so far; equal on all workers between two operations.
        sums: number of sums of gradients so far, and of all sums of partitioned programs.
        summed: bytes of the arrays in these sums.
        background: makes exchanges while this worker computes; any other operation begins when they
            are over.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.meetings = 0
        self.sums = self.summed = 0
        self.background = Background()

    # -- public exchanges -----------------------------------------------------------------------

    def allreduce(self, array: npt.ArrayLike, op: ReduceOp = ReduceOp.SUM) -> Array:
        """Reduces equally shaped arrays elementwise; every worker gets a new array with the result.

        Raises:
            OutOfStepError: shapes, dtypes or ``op`` differ between workers.
        """
        array = contiguous(array)
        check_reducible(array.dtype, op)
        self.agree(f"allreduce {op.value} {signature(array)}")
        if self.size == 1 or array.size == 0:
            return array.copy()
        if op is ReduceOp.ADASUM:
            everyone = self._allgather(array.reshape(-1), [array.size] * self.size).reshape(
                self.size, -1
            )
            wide = everyone.astype(np.float32) if is_half(array.dtype) else everyone
            return adasum.combine(list(wide)).reshape(array.shape).astype(array.dtype, copy=False)
        result = self.reduce_parts([array.reshape(-1)], op, [1.0] * self.size)[0].reshape(
            array.shape
        )
        # Means of 16-bit floats come divided: see `_mean_shares`.
        mean = op is ReduceOp.MEAN and not is_half(array.dtype)
        return (result / self.size if mean else result).astype(array.dtype, copy=False)

    def weighted_sum(
        self, parts: Sequence[Array], weight: float, lend: bool = False
    ) -> tuple[list[Array], float]:
        """Sums ``weight / total weight`` times each part over all workers: the exchange of a step.

        Args:
            parts: flat arrays of one floating dtype; the same sizes on every worker.
            weight: this worker's share of the step, e.g. its number of samples. A worker with
                weight 0 adds nothing, whatever its arrays hold (NaN included).
            lend: the sums may be memory that other workers look at too: no array is to be written
                to.

        Returns:
            The sums, in the order of ``parts``, and the total weight (0: every sum is 0).
        """
        dtype, sizes = parts[0].dtype, ",".join(str(part.size) for part in parts)
        # The text says whether memory is lent, as a worker that has joined must lend alike: see
        # `syrtos.comm.joining`.
        weights = self.agree(f"exchange {dtype} {sizes}{' lent' * lend}", weight)
        self.sums, self.summed = self.sums + 1, self.summed + sum(part.nbytes for part in parts)
        total = float(sum(weights))
        shares = [w / total if total else 0.0 for w in weights]
        return self.reduce_parts(parts, ReduceOp.SUM, shares, lend), total

    def allgather(self, array: npt.ArrayLike) -> Array:
        """Concatenates the workers' arrays along the first axis, in rank order.

        Row counts may differ.

        Raises:
            OutOfStepError: dtypes, or shapes beyond the first axis, differ between workers.
        """
        array = contiguous(array)
        if array.ndim == 0:
            array = array.reshape(1)
        rows = self.agree(f"allgather {signature(array, rows=False)}", array.shape[0])
        counts = [int(n) for n in rows]
        return self._allgather(array, counts)

    def broadcast(self, array: npt.ArrayLike, root: int = 0) -> Array:
        """Copies ``root``'s array to every worker.

        Raises:
            OutOfStepError: shapes or dtypes differ between workers.
        """
        array = contiguous(array)
        self.agree(f"broadcast from {self._check_root(root)} {signature(array)}")
        return self._broadcast(array.copy(), root)

    def reducescatter(self, array: npt.ArrayLike, op: ReduceOp = ReduceOp.SUM) -> Array:
        """Reduces like `allreduce` and keeps this worker's rows.

        The rows are ``share_of(len(array), rank, size)``.
        """
        reduced = self.allreduce(array, op)
        if reduced.ndim == 0:
            raise ExchangeError("reducescatter splits along the first axis, but received a scalar.")
        start, stop = share_of(reduced.shape[0], self.rank, self.size)
        return reduced[start:stop].copy()

    def gather_parts(self, wholes: Sequence[Array], bounds: Bounds) -> None:
        """Gathers arrays of which each worker has a part.

        Each worker gets the parts of the others into the same arrays.

        Args:
            wholes: flat arrays of one dtype; the same sizes on every worker. They are written to.
            bounds: for each array and worker, the first element of its part and the one after its
                last; the same on every worker.

        Raises:
            OutOfStepError: dtypes or sizes differ between workers.
        """
        self.agree(
            f"gather parts {wholes[0].dtype} {','.join(str(whole.size) for whole in wholes)}"
        )
        if self.size > 1:
            self._gather_parts(wholes, bounds)

    def weighted_part_sum(
        self, wholes: Sequence[Array], bounds: Bounds, weight: float
    ) -> list[Array]:
        """Sums as `weighted_sum` does, and gives each worker its own part of each array.

        Between hosts that takes half the bytes.

        Args:
            wholes: flat arrays of one floating dtype; the same sizes on every worker.
            bounds: the parts, as for `gather_parts`.
            weight: this worker's share of the step, as for `weighted_sum`.

        Returns:
            New arrays, each of as many elements as this worker's part has.
        """
        sizes = ",".join(str(whole.size) for whole in wholes)
        weights = self.agree(f"sum parts {wholes[0].dtype} {sizes}", weight)
        self.sums, self.summed = self.sums + 1, self.summed + sum(whole.nbytes for whole in wholes)
        total = float(sum(weights))
        return self._reduce_to_parts(wholes, bounds, [w / total if total else 0.0 for w in weights])

    def alltoall(
        self, array: npt.ArrayLike, splits: Sequence[int] | None = None
    ) -> tuple[Array, list[int]]:
        """Sends the ``i``-th group of rows to worker ``i``.

        Args:
            array: rows for all workers, in rank order.
            splits: rows for each worker; None: the same number for each.

        Returns:
            The received rows in rank order, and the number of rows from each worker.
        """
        array = contiguous(array)
        counts = self._row_splits(array, splits)
        self.agree(f"alltoall {signature(array, rows=False)}")
        matrix = self._allgather(np.asarray(counts, np.int64), [self.size] * self.size)
        received = [int(n) for n in matrix.reshape(self.size, self.size)[:, self.rank]]
        return self._alltoall(array, counts, received), received

    def barrier(self) -> None:
        """Waits until every worker has called it."""
        self.agree("barrier")

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Copies ``root``'s value to every worker.

        The value is plain data (see `syrtos.comm.objects`). Nothing is unpickled.
        """
        data = self._encode(value) if self.rank == root else np.zeros(0, np.uint8)
        sizes = self.agree(f"broadcast object from {self._check_root(root)}", data.size)
        if self.rank != root:
            data = np.zeros(int(sizes[root]), np.uint8)
        return from_bytes(self._broadcast(data, root))

    def allgather_object(self, value: Any) -> list[Any]:
        """Returns the values of all workers in rank order, on every worker.

        The values are plain data (see `syrtos.comm.objects`).
        """
        data = self._encode(value)
        sizes = [int(n) for n in self.agree("allgather object", data.size)]
        chunks = np.split(self._allgather(data, sizes), np.cumsum(sizes)[:-1])
        return [from_bytes(chunk) for chunk in chunks]

    def agree(self, call: str, value: float = 0.0) -> list[float]:
        """Waits for every worker, checks that all called the same, and gathers a number from each.

        Raises:
            OutOfStepError: another worker called something else.
            StalledError: another worker did not come within the watchdog's time.
        """
        if self.size == 1:
            return [value]
        # What the background thread exchanges comes first, as on all workers.
        self.background.settle()
        self.meetings += 1
        began = time.perf_counter() if trace.state.recorder else 0.0
        tags, values = self.meet(of_call(call), value, call)
        # A profile may have begun, or ended, during the meeting.
        if began and (recorder := trace.state.recorder):
            recorder.add("agreement", call, began, time.perf_counter())
        if joined := tags.joined_ranks:
            self.hear(tags, call)
            # A worker that has joined counts in averages, as in Horovod. For other calls its number
            # is 0.
            nothing = 1.0 if call.startswith("exchange ") else 0.0
            return [nothing if rank in joined else mine for rank, mine in enumerate(values)]
        if tags.differ:
            self._explain(call)
        return values

    def meet(self, tag: int, value: float, call: str) -> tuple[Tags, list[float]]:
        """Gathers every worker's tag and value, once no worker passes by any more."""
        self.background.settle()
        while True:
            found, values = self._meet(tag, value, call)
            tags = Tags(found)
            if not tags.passing:
                return tags, values

    def reduce_parts(
        self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float], lend: bool = False
    ) -> list[Array]:
        """Reduces flat parts of one dtype, worker ``r``'s scaled by ``shares[r]``.

        All workers have agreed to the exchange before. The results are new arrays, or with ``lend``
        memory that is not to be written to. Means of 16-bit floats come divided, those of others as
        sums.
        """
        if is_half(parts[0].dtype):
            return self._reduce_half(parts, op, shares)
        return self._reduce(parts, op, shares, lend)

    def sum_of_halves(self, array: Array, op: ReduceOp, shares: Sequence[float]) -> Array:
        """Reduces a flat array of 16-bit floats, in float32.

        Each worker gets a part of all arrays, reduces it and gives it to all: a number is sent
        twice, as many bytes as the best sum of numbers that are 16 bits long.
        """
        # In pieces: MPICH takes three times as long for 50 MB at once over TCP (1,381 and 456 ms at
        # 1 Gbit/s).
        result, step = np.empty_like(array), _PIECE_OF_HALVES // array.itemsize
        for begin in range(0, array.size, step):
            result[begin : begin + step] = self._sum_of_piece(
                array[begin : begin + step], op, shares
            )
        return result

    def _sum_of_piece(self, array: Array, op: ReduceOp, shares: Sequence[float]) -> Array:
        bounds = [share_of(array.size, rank, self.size) for rank in range(self.size)]
        counts = [stop - start for start, stop in bounds]
        received = self._alltoall(array, counts, [counts[self.rank]] * self.size).reshape(
            self.size, -1
        )
        shares = self._mean_shares() if op is ReduceOp.MEAN else shares
        wide = [_widen(part, share) for part, share in zip(received, shares, strict=True)]
        total = functools.reduce(UFUNC[op], wide)
        return self._allgather(narrow(total, array.dtype), counts)

    def in_float32(
        self, reduce: Reduce, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float]
    ) -> list[Array]:
        """Reduces 16-bit floats by ``reduce``, which takes float32.

        This serves exchanges inside a host, where bytes are cheap.
        """
        shares = self._mean_shares() if op is ReduceOp.MEAN else shares
        found = reduce([part.astype(np.float32) for part in parts], op, shares)
        return [narrow(part, parts[0].dtype) for part in found]

    def pass_by(
        self, call: str, again: bool = False, until: Callable[[], bool] | None = None
    ) -> bool:
        """Waits until every other worker has come to an operation, or passes by as well.

        No worker gets out of step by it.

        Args:
            call: the reason why this worker passes by.
            again: whether it has passed by with this ``call`` before, and done nothing since.
            until: ends the wait earlier.

        Returns:
            Whether a worker passes by with another ``call`` for the first time: it may do more
            before its next operation.

        Raises:
            StalledError: another worker did not come within the watchdog's time.
        """
        if self.size == 1:
            return False
        self.background.settle()
        tag = of_passing(call)
        found, first = self._meet(tag, float(not again), call, until)
        return any(first[rank] and found[rank] != tag for rank in Tags(found).passing)

    # -- what an engine provides ---------------------------------------------------------------

    @abc.abstractmethod
    def split(self, color: int) -> Communicator:
        """Returns the group of workers with the same ``color``, ordered by their ranks here."""

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the group's resources. Called by all its workers."""

    @abc.abstractmethod
    def _meet(
        self, tag: int, value: float, call: str, until: Callable[[], bool] | None = None
    ) -> tuple[list[int], list[float]]:
        """Gathers every worker's tag and value.

        ``call`` names the exchange in the error about a worker that did not come. An engine that
        can leaves when ``until()`` is true, with empty lists; the others get this worker's tag and
        value all the same.
        """

    @abc.abstractmethod
    def _reduce(
        self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float], lend: bool = False
    ) -> list[Array]:
        """Reduces flat parts of one dtype, as `reduce_parts` does.

        Worker ``r``'s parts are scaled by ``shares[r]`` (SUM only). 16-bit floats don't come here.
        """

    def _reduce_half(
        self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float]
    ) -> list[Array]:
        """Reduces flat parts of one dtype of 16-bit floats, as `_reduce` does others."""
        result = self.sum_of_halves(np.concatenate(parts), op, shares)
        return np.split(result, np.cumsum([part.size for part in parts])[:-1])

    def _reduce_to_parts(
        self, wholes: Sequence[Array], bounds: Bounds, shares: Sequence[float]
    ) -> list[Array]:
        """Sums arrays for `weighted_part_sum` and returns this worker's parts.

        Worker ``r``'s arrays are scaled by ``shares[r]``.
        """
        sums = self.reduce_parts(wholes, ReduceOp.SUM, shares, lend=True)
        return [
            total[slice(*ranges[self.rank])].copy()
            for total, ranges in zip(sums, bounds, strict=True)
        ]

    @abc.abstractmethod
    def _allgather(self, array: Array, rows: Sequence[int]) -> Array:
        """Concatenates the workers' arrays, whose first dimensions are ``rows``."""

    def _gather_parts(self, wholes: Sequence[Array], bounds: Bounds) -> None:
        """Gathers the other workers' parts into the same arrays, as `gather_parts`."""
        pairs = list(zip(wholes, bounds, strict=True))
        mine = np.concatenate([whole[slice(*ranges[self.rank])] for whole, ranges in pairs])
        counts = [sum(stop - start for start, stop in ranks) for ranks in zip(*bounds, strict=True)]
        everyone, at = self._allgather(mine, counts), 0
        for rank in range(self.size):
            for whole, ranges in pairs:
                start, stop = ranges[rank]
                if rank != self.rank:
                    whole[start:stop] = everyone[at : at + stop - start]
                at += stop - start

    @abc.abstractmethod
    def _broadcast(self, array: Array, root: int) -> Array:
        """Overwrites ``array`` with root's and returns it."""

    @abc.abstractmethod
    def _alltoall(self, array: Array, sent: Sequence[int], received: Sequence[int]) -> Array:
        """Sends ``sent[i]`` rows to worker ``i``, and gets ``received[i]`` rows from it."""

    # -- helpers -------------------------------------------------------------------------------

    def _mean_shares(self) -> list[float]:
        """Returns the factors for means of 16-bit floats."""
        # scaled before they are summed: the sum could be more than 16 bits hold
        return [1.0 / self.size] * self.size

    def _check_root(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise ExchangeError(
                f"`root` must be a rank of this group, 0 to {self.size - 1}. Received: {root}."
            )
        return root

    def _encode(self, value: Any) -> npt.NDArray[np.uint8]:
        """Returns the bytes of an object; if it can't be sent, the other workers learn of that."""
        try:
            return to_bytes(value)
        except ExchangeError:
            # The others are in this operation: they raise an error by it, instead of waiting.
            self.agree("an object that can't be sent")
            raise

    def _row_splits(self, array: Array, splits: Sequence[int] | None) -> list[int]:
        if array.ndim == 0:
            raise ExchangeError("alltoall sends rows, but received a scalar.")
        if splits is None and array.shape[0] % self.size:
            raise ExchangeError(
                f"alltoall of {array.shape[0]} rows between {self.size} workers: give `splits`, "
                "the number of rows for each worker."
            )
        counts = (
            [array.shape[0] // self.size] * self.size
            if splits is None
            else [int(n) for n in splits]
        )
        if len(counts) != self.size or sum(counts) != array.shape[0] or min(counts) < 0:
            raise ExchangeError(
                f"`splits` must be {self.size} counts that add up to {array.shape[0]} rows."
                f" Received: {counts}."
            )
        return counts

    def hear(self, tags: Tags, call: str) -> str:
        """Broadcasts the other workers' call to those that have joined.

        Raises:
            OutOfStepError: the other workers' calls differ.
            ExchangeError: the call needs data of every worker.
        """
        if tags.differ:
            self._explain(call)
        leader, joined = tags.calling[0], tags.joined_ranks
        # A bytearray: the broadcast writes into the array, and one over bytes is read-only.
        text = np.frombuffer(bytearray(call.encode()), np.uint8)
        sizes = self._meet(0, text.size, "the call of the other workers")[1]
        if self.rank != leader:
            text = np.zeros(int(sizes[leader]), np.uint8)
        heard = self._broadcast(text, leader).tobytes().decode()
        found = _FOLLOWED.match(heard)
        if not found or (found[2] and int(found[2]) in joined):
            raise ExchangeError(
                f"Workers {joined} have joined (they have no more data), and the others call"
                f" `{heard}`, which needs data of every worker. After `join` on one worker the"
                " others may sum, average and gather tensors, and broadcast their own."
            )
        return heard

    def _explain(self, call: str) -> None:
        """Raises OutOfStepError on every worker, with what each of them called."""
        text = to_bytes(call)[:1024]
        sizes = [int(n) for n in self._meet(0, text.size, "exchange error report")[1]]
        chunks = np.split(self._allgather(text, sizes), np.cumsum(sizes)[:-1])
        calls = [chunk.tobytes().decode(errors="replace").strip('"') for chunk in chunks]
        raise OutOfStepError(
            "Workers are out of step: they called different operations, or the same one with"
            " different tensors.\n"
            + "\n".join(f"  rank {rank}: {name}" for rank, name in enumerate(calls))
            + "\nAll workers must run the same operations in the same order with equal shapes and"
            " dtypes. Look for code that runs on some ranks only (`if rank == 0:"
            " model.evaluate(...)`) or for data that differs by rank."
        )


def _widen(half: Array, share: float) -> Array:
    """Returns ``share * half`` as float32; a share of 0 gives 0 even where there is NaN."""
    wide = half.astype(np.float32)
    scaled_copy(wide, share, wide)
    return wide
