"""A pipe that is read in a thread, with the answer to whether all that was written so far has been dealt with."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import IO

_PIECE = 1 << 16  # bytes, at most


class Reader:
    """A thread that gives what comes through a pipe to a function."""

    def __init__(self, source: IO[bytes], take: Callable[[bytes], object]) -> None:
        """``take`` gets each piece, and at the end nothing."""
        self._source, self._take = source, take
        self._taking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="syrtos-output", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Waits until all writers have closed the pipe, and closes it then."""
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._source.close()

    def is_drained(self) -> bool:
        """Whether everything that is in the pipe has been taken; what a process has written before its end, if that is over."""
        if not self._thread.is_alive():
            return True
        if not self._taking.acquire(blocking=False):
            return False
        try:
            return not self._readable(0)
        finally:
            self._taking.release()

    def _run(self) -> None:
        over = False
        while not over:
            self._readable(None)
            with self._taking:
                piece = os.read(self._source.fileno(), _PIECE)
                over = not piece
                self._take(piece)

    def _readable(self, milliseconds: int | None) -> bool:
        """Whether there is something to read, or the end, within this time; not by select(2), which knows 1024 descriptors."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        return bool(poll.poll(milliseconds))
