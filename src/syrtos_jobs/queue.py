"""The scheduling of jobs: the oldest run first, as many as there are workers for.

Spot jobs give way to the others. One process at a time decides (a lock in the service's folder);
the jobs themselves run in processes of their own and outlive it.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Sequence

from syrtos import settings
from syrtos_jobs.api.service import Service
from syrtos_jobs.complaints import complain, describe
from syrtos_jobs.polling import PollingThread
from syrtos_jobs.requests import states
from syrtos_jobs.runner import attempt, processes
from syrtos_jobs.store.home import is_locked
from syrtos_jobs.store.job_store import Brief, Record

_LOOK = 0.2
_KEEP_EVERY = 60.0  # seconds
_WAITING = frozenset({"Starting", "Pending", "Interrupted", "Restarting"})


class Queue(PollingThread):
    """Starts jobs, and notices when their runners are gone."""

    def __init__(self, service: Service) -> None:
        super().__init__("queue", _LOOK)
        self._service = service
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._kept_at = -_KEEP_EVERY

    def report_failure(self, error: Exception) -> None:
        """Prints that the jobs could not be scheduled."""
        complain(f"the queue could not schedule the jobs: {describe(error)}")

    def after_poll(self) -> None:
        """Copies the database and reserves room on the disk, once a minute."""
        if time.monotonic() >= self._kept_at + _KEEP_EVERY:
            self._keep_safe()

    def _keep_safe(self) -> None:
        """Copies the database daily, and reserves room for records of jobs that fill the disk."""
        self._kept_at = time.monotonic()
        try:
            self._service.home.reserve.keep()
            if backups := self._service.home.backups:
                backups.keep()
        except Exception as error:
            # a full disk, say: jobs go on
            complain(f"the database could not be copied: {describe(error)}")

    def look(self) -> None:
        """Starts jobs that wait, and deals with those whose runners are gone."""
        for name, child in [*self._children.items()]:
            if child.poll() is not None:
                del self._children[name]
        waiting, used, spots = [], 0, []
        for record in self._service.store.active():
            # it was started, and its runner is gone before it wrote anything
            died_at_once = record.secondary == "Starting" and record.attempts
            if self._runs(record):
                used += record.slots
                if record.spot:
                    spots.append(record)
            elif record.secondary in _WAITING and record.status != "Stopping" and not died_at_once:
                waiting.append(record)
            else:
                self._take_up_abandoned(record)
        # a spot job does not start again before the job that preempted it
        waiting.sort(key=lambda record: record.spot)
        self._begin(waiting, self._service.capacity - used, spots)

    def _runs(self, record: Brief) -> bool:
        begun = record.attempts > 0
        return begun and (
            record.name in self._children
            or is_locked(self._service.home.job(record.name) / attempt.LOCK)
        )

    # -- jobs that wait ------------------------------------------------------------------------

    def _begin(self, waiting: Sequence[Brief], free: int, spots: Sequence[Brief]) -> None:
        for record in waiting:
            if self._end_if_expired(record):
                continue
            if record.slots <= free:
                free -= record.slots
                self._start(record)
                continue
            self._wait(record)
            # the capacity is smaller than when the job was created: the others need not wait for it
            if record.slots > self._service.capacity:
                continue
            if not record.spot:
                self._make_way(record.slots - free, spots)
            # in order: if later jobs overtook it, a big job might never find enough workers free
            free = 0

    def _start(self, record: Brief) -> None:
        name, home = record.name, self._service.home

        def mark_started(found: Record) -> Record | None:
            if found.state.status == "Stopping" or found.state.final:
                return None
            after = dataclasses.replace(found, attempts=found.attempts + 1, yields=False)
            return (
                after if after.state.secondary == "Starting" else after.with_transition("Starting")
            )

        after = self._service.store.change(name, mark_started)
        if after is None or after.attempts == record.attempts:
            return
        log = (home.job(name) / "runner.log").open("ab")
        with log:
            self._children[name] = subprocess.Popen(
                [sys.executable, "-m", "syrtos_jobs.runner.guard", name],
                env={**settings.environment(), "SYRTOS_HOME": str(home.path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the service's terminal is not for the jobs
                start_new_session=True,
            )

    def _wait(self, record: Brief) -> None:
        if record.secondary != "Pending":
            self._service.store.change(
                record.name,
                lambda r: (
                    r.with_transition("Pending")
                    if r.state.secondary in _WAITING - {"Pending"}
                    else None
                ),
            )

    def _make_way(self, missing: int, spots: Sequence[Brief]) -> None:
        """Interrupts the youngest spot jobs, as many as it takes to free ``missing`` workers.

        If all of them together would not free enough, none is interrupted.
        """
        # spot jobs that were asked in an earlier look have not ended yet
        leaving = sum(record.slots for record in spots if record.yields)
        candidates = [
            record
            for record in reversed(spots)
            if not record.yields and record.secondary == "Training"
        ]
        if leaving + sum(record.slots for record in candidates) < missing:
            return
        for record in candidates:
            if leaving >= missing:
                return
            leaving += record.slots
            self._service.store.change(record.name, lambda r: dataclasses.replace(r, yields=True))

    def _end_if_expired(self, record: Brief) -> bool:
        """Ends a job that has waited longer than it may; returns whether it has."""
        now = time.time()
        if record.wait_until and now > record.wait_until:
            self._service.store.change(record.name, lambda r: r.with_end("MaxWaitTimeExceeded"))
        elif record.begin_until and not record.attempts and now > record.begin_until:
            text = "CapacityError: there were no workers for the job for MaxPendingTimeInSeconds."
            self._service.store.change(record.name, lambda r: r.with_failure(text))
        else:
            return False
        return True

    # -- jobs whose runner is gone -------------------------------------------------------------

    def _take_up_abandoned(self, record: Brief) -> None:
        home, name = self._service.home, record.name
        current = self._service.store.get(name)
        if current is None or current.state.final or self._runs(record):
            # it has just ended, or begun
            return
        # its scripts may have outlived it
        processes.end(attempt.mark(home, name))
        home.forget_snapshots(name)
        retries = (current.request.get("RetryStrategy") or {}).get(
            "MaximumRetryAttempts", states.RESTARTS
        )
        restarts = states.restarts(current.state.transitions)
        if current.state.status == "Stopping":
            self._service.store.change(name, lambda r: r.with_end("Stopped"))
        elif restarts >= retries:
            text = (
                f"InternalServerError: the job was started again {restarts} times, and its process"
                f" is gone; {home.job(name) / 'runner.log'} may say why."
            )
            self._service.store.change(name, lambda r: r.with_failure(text))
        else:
            self._service.store.change(name, lambda r: r.with_end("Restarting"))
