"""A service's thread that checks for work again and again, and at once when it is told to."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod

from syrtos_jobs.complaints import complain

_LATE = 60.0  # seconds: a look that takes longer hangs, or its database does


class PollingThread(ABC):
    """A thread that calls `look` again and again, from `start` until `close`.

    Jobs that run when it is closed go on.

    Args:
        name: the name by which `fault` and complaints call it.
        pause: seconds between two looks.
    """

    def __init__(self, name: str, pause: float) -> None:
        self.name, self._pause = name, pause
        self._over, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._deaths, self._looked_at = 0, time.monotonic()
        # what is wrong now, and what was reported last: not five times a second
        self._failed = self._reported = ""

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
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Makes the next look happen at once."""
        self._wake.set()

    def revive(self) -> None:
        """Starts the thread again if it has died."""
        if self._over.is_set() or self._thread is None or self._thread.is_alive():
            return
        self._deaths += 1
        # until a look has come to its end
        self._failed = "its thread has died"
        complain(f"the thread of the {self.name} has died, and is started again.")
        self.start()

    def fault(self) -> str:
        """Returns what is wrong with the thread, as a sentence; empty if it does its work."""
        if self._thread is None or not self._thread.is_alive():
            return f"The thread of the {self.name} does not run."
        late = time.monotonic() - self._looked_at
        if late > _LATE:
            return f"The {self.name} has not come to an end of its work for {late:.0f} seconds."
        return self._failed and f"The {self.name} has failed ({self._failed}); its log says why."

    @property
    def deaths(self) -> int:
        """The number of times that the thread has died, and was started again."""
        return self._deaths

    def close(self) -> None:
        """Ends the thread: nothing more is started."""
        self._over.set()
        self._wake.set()
        if self._thread and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self._poll()
            self._looked_at = time.monotonic()
            # cleared after the wait: a `wake` during the look makes the next one follow at once
            self._wake.wait(self._pause)
            self._wake.clear()

    def _poll(self) -> None:
        try:
            self.look()
            self._failed = self._reported = ""
        except Exception as error:
            # `fault` is for anybody: what the error says may name files and jobs
            self._failed = type(error).__name__
            if str(error) != self._reported:
                self._reported = str(error)
                # a report that can't be made is no reason to end
                with contextlib.suppress(Exception):
                    self.report_failure(error)
        try:
            self.after_poll()
        except Exception as error:
            complain(f"the {self.name} could not clear up: {error}")
