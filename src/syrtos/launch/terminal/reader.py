"""A pipe read in a thread, which can say whether all that was written so far was dealt with."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import IO

_PIECE = 1 << 16  # bytes, at most


class Reader:
    """A thread that gives what comes through a pipe to a function."""

    def __init__(self, source: IO[bytes], take: Callable[[bytes], object]) -> None:
        """Starts the thread; ``take`` gets each piece, and an empty piece at the end."""
        self._source, self._take = source, take
        self._complained = False
        # Between the pipe and the function a piece is in neither: whoever asks then must not think
        # it has been taken.
        self._taking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="syrtos-output", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Waits until all writers have closed the pipe, at most ``timeout`` seconds.

        If they have, the pipe is closed here.
        """
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._source.close()

    def is_drained(self) -> bool:
        """Returns whether everything in the pipe has been taken.

        For a process that has ended, this means that all it has written was taken.
        """
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
                try:
                    self._take(piece)
                except Exception as error:
                    # who writes into the pipe would wait for ever if nobody read it any more
                    self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Prints once that a piece could not be dealt with."""
        if not self._complained:
            self._complained = True
            with contextlib.suppress(OSError, ValueError):
                print(
                    f"syrtos: some of what workers print is not shown: {type(error).__name__}:"
                    f" {error}",
                    file=sys.stderr,
                    flush=True,
                )

    def _readable(self, milliseconds: int | None) -> bool:
        """Waits at most ``milliseconds`` and returns whether there is data to read, or the end."""
        # not by select(2), which knows 1024 descriptors
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        return bool(poll.poll(milliseconds))
