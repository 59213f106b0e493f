"""A thread of a service that looks again and again whether there is something to do, or at once when it is told so."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Looking(ABC):
    """What `start` begins ends with `close`; jobs that run meanwhile go on.

    Args:
        pause: s between two looks.
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._over, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def look(self) -> None:
        """Does what is to be done now."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Says that a look has failed, of a database that is away for a moment, say; the next one comes."""

    def looked(self) -> None:  # noqa: B027 - most have nothing to do then
        """Is called after each look."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """There may be something to do at once."""
        self._wake.set()

    def close(self) -> None:
        """Starts nothing more."""
        self._over.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.look()
            except Exception as error:
                self.failed(error)
            self.looked()
            self._wake.wait(self._pause)
            self._wake.clear()
