"""Shared memory in which results are lent.

An exchange returns the memory that all workers of the host have summed in.

A window may be written to again when no worker looks at it any more. Each worker knows that of
itself, because a lent array tells when it ends; before each exchange the workers tell each other,
through shared memory too, and take the smallest window that is free at all of them. If there is
none, they make one more, up to a budget; beyond that, results are copied, as where a script keeps
what it was lent.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from syrtos.comm import segments
from syrtos.comm.arrays import Array
from syrtos.errors import SharedMemoryError

_MOST = 256
# Windows take at most this part of the machine's memory.
_BUDGET = 1 / 8
# A window that so many exchanges have not taken is given back when another one is made.
_FORGOTTEN = 1000
# A window is taken for results of at least half its size.
_FITTING = 2
_PAGE = 1 << 12


@dataclasses.dataclass
class _Window:
    memory: memoryview
    used: int
    lent: weakref.ref[Array] | None = None

    @property
    def is_free(self) -> bool:
        """Returns whether nothing in this process looks at the window."""
        return self.lent is None or self.lent() is None


class Windows:
    """The windows of the workers of one host; all of them call each method together.

    Attributes:
        nbytes: the bytes of all windows.
    """

    def __init__(self, comm: MPI.Comm, meet: Callable[[], None]) -> None:
        """Makes the table of free windows.

        ``meet`` returns when all workers have called it, and then each sees what the others have
        written before.
        """
        self._comm, self._meet = comm, meet
        self._windows: list[_Window] = []
        self._taken = 0
        # For each worker which windows are free at it, in two tables that are used in turn: all
        # workers have read one before it is written to again.
        self._free = np.frombuffer(
            segments.create(comm, 2 * comm.Get_size() * _MOST), np.uint8
        ).reshape(2, -1, _MOST)
        self.nbytes = 0
        # From one worker, so that all decide alike whether there is room.
        self._budget = comm.bcast(
            int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _BUDGET)
        )

    def take(self, nbytes: int) -> Array | None:
        """Returns ``nbytes`` bytes that no worker looks at, uninitialized; None if there are none.

        They are free again at this worker when the last array that depends on the returned one
        ends.
        """
        board, self._taken = self._free[self._taken % 2], self._taken + 1
        board[self._comm.Get_rank(), : len(self._windows)] = [
            window.is_free for window in self._windows
        ]
        self._meet()
        free = board.all(axis=0)
        fitting = [
            (len(window.memory), index)
            for index, window in enumerate(self._windows)
            if free[index] and nbytes <= len(window.memory) <= _FITTING * nbytes
        ]
        window = self._windows[min(fitting)[1]] if fitting else self._add_window(nbytes, free)
        if window is None:
            return None
        array = np.frombuffer(window.memory, np.uint8, nbytes)
        window.used, window.lent = self._taken, weakref.ref(array)
        return array

    def _add_window(self, nbytes: int, free: Array) -> _Window | None:
        # What is given back follows from what all workers know, so all give back the same.
        self._windows = [
            w
            for index, w in enumerate(self._windows)
            if not (free[index] and self._taken - w.used > _FORGOTTEN)
        ]
        self.nbytes = sum(len(window.memory) for window in self._windows)
        size = -(-nbytes // _PAGE) * _PAGE
        if len(self._windows) == _MOST or self.nbytes + size > self._budget:
            return None
        try:
            memory = segments.create(self._comm, size)
        except SharedMemoryError:
            # `create` fails at all workers or at none.
            return None
        self.nbytes += size
        self._windows.append(_Window(memory, self._taken))
        return self._windows[-1]
