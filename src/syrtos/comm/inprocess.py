"""Workers as threads of one process: the fake that ships with syrtos, for tests without MPI."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from syrtos.comm.arrays import UFUNC, Array, ReduceOp, scaled_copy
from syrtos.comm.communicator import Communicator
from syrtos.errors import StalledError


class _Board:
    """The barrier of one group's threads, and the slots through which they pass values."""

    def __init__(self, size: int, timeout: float) -> None:
        self.barrier = threading.Barrier(size)
        self.slots: list[Any] = [None] * size
        self.timeout = timeout


class InProcessCommunicator(Communicator):
    """A communicator between ``size`` workers that are threads of this process.

    It also serves as the world of one worker.
    """

    def __init__(self, rank: int = 0, size: int = 1, board: _Board | None = None) -> None:
        super().__init__(rank, size)
        self._board = board or _Board(size, timeout=60.0)

    @classmethod
    def world(cls, size: int, timeout: float = 60.0) -> list[InProcessCommunicator]:
        """Returns the communicators of all workers of a new world.

        A wait of more than ``timeout`` seconds is an error.
        """
        board = _Board(size, timeout)
        return [cls(rank, size, board) for rank in range(size)]

    def split(self, color: int) -> InProcessCommunicator:
        colors = self._swap(color, "split")
        members = [rank for rank, other in enumerate(colors) if other == color]
        boards = self._swap(_Board(len(members), self._board.timeout), "split")
        return InProcessCommunicator(members.index(self.rank), len(members), boards[members[0]])

    def close(self) -> None:
        """Does nothing: threads hold nothing to free."""

    def _swap(self, value: Any, call: str) -> list[Any]:
        """Returns every worker's value."""
        if self.size == 1:
            return [value]
        try:
            self._board.slots[self.rank] = value
            self._board.barrier.wait(self._board.timeout)
            values = list(self._board.slots)
            # the second meeting keeps slots from being overwritten before all have read
            self._board.barrier.wait(self._board.timeout)
        except threading.BrokenBarrierError as error:
            raise StalledError(
                f"rank {self.rank} waited in `{call}` for a worker that did not come."
            ) from error
        return values

    def _meet(
        self, tag: int, value: float, call: str, until: Callable[[], bool] | None = None
    ) -> tuple[list[int], list[float]]:
        pairs = self._swap((tag, value), call)
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def _reduce(
        self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float], lend: bool = False
    ) -> list[Array]:
        scaled = [np.empty_like(part) for part in parts]
        for part, target in zip(parts, scaled, strict=True):
            scaled_copy(part, shares[self.rank], target)
        return [
            functools.reduce(UFUNC[op], same)
            for same in zip(*self._swap(scaled, "reduce"), strict=True)
        ]

    def _allgather(self, array: Array, rows: Sequence[int]) -> Array:
        # A copy: the caller may write to its array while other threads still read this one.
        return np.concatenate(self._swap(array.copy(), "allgather"))

    def _broadcast(self, array: Array, root: int) -> Array:
        array[...] = self._swap(array.copy(), "broadcast")[root]
        return array

    def _alltoall(self, array: Array, sent: Sequence[int], received: Sequence[int]) -> Array:
        groups = np.split(array.copy(), np.cumsum(sent)[:-1])
        return np.concatenate([theirs[self.rank] for theirs in self._swap(groups, "alltoall")])
