"""A service's thread that checks for work again and again, and at once when it is told to."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class PollingThread(ABC):
    """A thread that calls `look` again and again, from `start` until `close`.

    Jobs that run when it is closed go on.

    Args:
        pause: seconds between two looks.
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._over, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def look(self) -> None:
        """Does the work that there is now."""

    @abstractmethod
    def report_failure(self, error: Exception) -> None:
        """Reports that a look has failed, e.g. because the database is away for a moment.

        The next look follows.
        """

    def after_poll(self) -> None:  # noqa: B027 - most have nothing to do then
        """Runs after each look; does nothing by default."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Makes the next look happen at once."""
        self._wake.set()

    def close(self) -> None:
        """Ends the thread: nothing more is started."""
        self._over.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.look()
            except Exception as error:
                self.report_failure(error)
            self.after_poll()
            # cleared after the wait: a `wake` during the look makes the next one follow at once
            self._wake.wait(self._pause)
            self._wake.clear()
