"""The limits of a job's time, for one attempt, by a clock that no one sets."""

from __future__ import annotations

import time
from collections.abc import Sequence

from syrtos_jobs.requests import states
from syrtos_jobs.requests.states import Transition


class TimeLimit:
    """A count of the time that a job may take.

    A clock that is set, by a person or as a virtual machine wakes up, changes the dates of a job and
    not the seconds that it may run.
    """

    def __init__(self, running: float, wait_until: float | None) -> None:
        """Begins to count.

        Args:
            running: seconds for which the job may train, in all attempts.
            wait_until: the moment at which the job ends that has waited and trained, s since 1970;
                None: there is none.
        """
        self._running = running
        self._wait_until = None if wait_until is None else _monotonic(wait_until)
        # when a status was seen first, by its beginning
        self._seen: dict[float, float] = {}

    def exceeded(self, transitions: Sequence[Transition]) -> str:
        """Returns the status in which a job with these transitions ends; empty as long as none."""
        last = transitions[-1]["StartTime"]
        now = last + time.monotonic() - self._seen.setdefault(last, time.monotonic())
        if states.seconds_in(transitions, ("Training",), now) > self._running:
            return "MaxRuntimeExceeded"
        if self._wait_until is not None and time.monotonic() > self._wait_until:
            return "MaxWaitTimeExceeded"
        return ""


def _monotonic(moment: float) -> float:
    return time.monotonic() + moment - time.time()
