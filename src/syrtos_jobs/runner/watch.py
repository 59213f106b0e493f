"""The threads that look after an attempt while its main thread works or waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from syrtos_jobs.complaints import complain_in_full
from syrtos_jobs.runner.time_limit import TimeLimit
from syrtos_jobs.store.job_store import Record, Store

_LOOK, _SAVE = 0.2, 1.0  # seconds


class Watch:
    """Watches an attempt: the job's record, its limits of time, and what it has come to.

    Each has a thread of its own, since each may have to wait: a database that is locked must not
    keep a job from ending at its time.

    Args:
        store: the place of the record.
        record: the record as it is.
        limit: the count of the time that the job may take.
        obey: called again and again with the secondary status in which the job is to end; empty:
            nothing asks for its end.
        save: writes down what the job has come to.
    """

    def __init__(
        self,
        store: Store,
        record: Record,
        limit: TimeLimit,
        obey: Callable[[str], None],
        save: Callable[[], None],
    ) -> None:
        self._store, self._limit, self._obey = store, limit, obey
        self._record: Record | None = record
        self._name = record.name
        self._over = threading.Event()
        work = ((self._read, _LOOK), (self._act, _LOOK), (save, _SAVE))
        self._threads = [
            threading.Thread(target=self._repeat, args=each, daemon=True) for each in work
        ]

    def start(self) -> None:
        """Begins to watch."""
        for thread in self._threads:
            thread.start()

    def close(self, patience: float = 5.0) -> None:
        """Ends the threads; waits no longer than ``patience`` seconds for all of them."""
        self._over.set()
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(timeout=max(until - time.monotonic(), 0.0))

    def _repeat(self, work: Callable[[], None], pause: float) -> None:
        while not self._over.wait(pause):
            try:
                work()
            except Exception:
                # a database that is away for a moment must not make the job deaf
                complain_in_full()

    def _read(self) -> None:
        self._record = self._store.get(self._name)

    def _act(self) -> None:
        self._obey(wanted_end(self._record, self._limit))


def wanted_end(record: Record | None, limit: TimeLimit) -> str:
    """Returns the secondary status in which a job is to end now; empty if it goes on."""
    if record is None or record.state.status == "Stopping":
        return "Stopped"
    exceeded = limit.exceeded(record.state.transitions)
    return exceeded or ("Interrupted" if record.yields else "")
