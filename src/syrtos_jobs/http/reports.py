"""The report about a job, as `syrtos report` makes it of the job's last attempt."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

from syrtos.errors import ConfigurationError
from syrtos.report import facts, page
from syrtos.report.read import load
from syrtos_jobs.api.service import Service
from syrtos_jobs.store import runs
from syrtos_jobs.store.job_store import Record

# Seconds between two reports about a running job: at least _EVERY, and _TIMES the seconds that a
# report takes.
_EVERY, _TIMES = 2.0, 20
_KEPT = 32


@dataclasses.dataclass(frozen=True)
class _Made:
    facts: dict[str, object] | None
    final: bool
    until: float


class Reports:
    """Reports about jobs; each is kept until the job may have written more."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._made: dict[Path, _Made] = {}
        self._making: dict[Path, threading.Lock] = {}

    def of(self, record: Record) -> dict[str, object] | None:
        """Returns the facts of a job's last attempt; None before it has written any."""
        attempts = runs.attempts(self._service.home.job(record.name))
        if not attempts:
            return None
        # a report of a long run takes seconds: others who ask for it at the same time wait for this
        # one
        with self._making.setdefault(attempts[-1], threading.Lock()):
            made = self._made.get(attempts[-1])
            if made is None or (not made.final and time.monotonic() > made.until):
                made = self._made[attempts[-1]] = _make(attempts[-1], record.state.final)
                while len(self._made) > _KEPT:
                    self._made.pop(next(iter(self._made)), None)
            return made.facts

    def page(self, record: Record) -> str | None:
        """Returns the report as an HTML file; None before the job has written any facts."""
        found = self.of(record)
        return page.page([found]) if found else None


def _make(attempt: Path, final: bool) -> _Made:
    began = time.monotonic()
    try:
        found = facts.of_run(load(attempt, goes_on=not final))
    except ConfigurationError:
        # the attempt has no ledgers yet, or its script does not train with syrtos
        found = None
    took = time.monotonic() - began
    return _Made(found, final, time.monotonic() + max(_EVERY, _TIMES * took))
