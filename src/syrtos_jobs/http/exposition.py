"""``/metrics`` for Prometheus: the service's jobs and workers, and figures of jobs in training."""

from __future__ import annotations

import hmac
import math
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from syrtos.report.figures import Figures
from syrtos.report.prometheus import families
from syrtos_jobs.api.service import Service
from syrtos_jobs.http.page import token
from syrtos_jobs.store import runs
from syrtos_jobs.store.job_store import Brief

_STATUSES = ("InProgress", "Completed", "Failed", "Stopping", "Stopped")
_WAITING_AGAIN = ("Pending", "Interrupted", "Restarting")
_WAITING = frozenset({"Starting", *_WAITING_AGAIN})
_HOW = (
    "Prometheus needs the key of this service: under `authorization`, `credentials` is the token in"
    " the address that `syrtos serve` prints (as curl: `-H 'Authorization: Bearer TOKEN'`).\n"
)


class Exposition:
    """Answers Prometheus."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._expected = f"Bearer {token(service.home)}".encode()
        self._figures: dict[Path, Figures] = {}
        # `Figures` reads files on from where it was: not for two scrapes at once
        self._reading = threading.Lock()

    def serves(self, request: Request) -> bool:
        """Returns whether a request without a signature is for ``/metrics``."""
        return request.url.path == "/metrics"

    async def answer(self, request: Request) -> Response:
        """Answers a scrape, whose key is checked."""
        if not hmac.compare_digest(
            request.headers.get("authorization", "").encode(), self._expected
        ):
            return PlainTextResponse(_HOW, 403)
        if request.method != "GET":
            return PlainTextResponse("Metrics are read by GET.\n", 405)
        text = await run_in_threadpool(generate_latest, self)
        return Response(
            text, headers={"Content-Type": CONTENT_TYPE_LATEST, "Cache-Control": "no-store"}
        )

    def collect(self) -> list[Metric]:
        """Returns the families of metrics; prometheus_client calls it for each scrape."""
        active = self._service.store.active()
        with self._reading:
            return [*self._of_service(active), *families(self._of_jobs(active))]

    def _of_service(self, active: list[Brief]) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("syrtos_jobs", "Jobs by TrainingJobStatus.", labels=["status"])
        found: dict[str, int] = dict.fromkeys(_STATUSES, 0)
        for (status, _), count in self._service.store.counts().items():
            found[status] += count
        for status, count in found.items():
            jobs.add_metric([status], count)
        waiting = [job for job in active if not _occupies(job)]
        used = sum(job.slots for job in active if _occupies(job))
        yield jobs
        slots = math.inf if self._service.limit is None else self._service.limit
        yield GaugeMetricFamily("syrtos_slots", "Workers that may run at the same time.", slots)
        yield GaugeMetricFamily("syrtos_slots_used", "Workers that jobs occupy.", used)
        yield GaugeMetricFamily("syrtos_queue_length", "Jobs that wait for workers.", len(waiting))
        oldest = max((self._seconds_waited(job.name) for job in waiting), default=0.0)
        yield GaugeMetricFamily(
            "syrtos_queue_oldest_seconds", "How long the first of them has waited.", oldest
        )

    def _seconds_waited(self, name: str) -> float:
        """Returns the seconds since a job was created, or since its last attempt ended."""
        record = self._service.store.get(name)
        now = since = time.time()
        for transition in reversed(record.state.transitions if record else ()):
            if transition["Status"] not in _WAITING:
                break
            since = transition["StartTime"]
        return max(now - since, 0.0)

    def _of_jobs(self, active: list[Brief]) -> dict[str, Figures]:
        """Returns the figures of the jobs that train now, by name.

        The figures of other jobs are dropped from memory.
        """
        folders = {
            job.name: runs.attempts(self._service.home.job(job.name))
            for job in active
            if _trains(job)
        }
        run_dirs = {name: found[-1] for name, found in folders.items() if found}
        self._figures = {
            path: self._figures.get(path) or Figures(path) for path in run_dirs.values()
        }
        return {
            name: self._figures[path]
            for name, path in run_dirs.items()
            if _is_read(self._figures[path])
        }


def _occupies(job: Brief) -> bool:
    """Returns whether a job occupies workers: it was started, and awaits no other start."""
    return job.attempts > 0 and job.secondary not in _WAITING_AGAIN


def _trains(job: Brief) -> bool:
    return job.secondary == "Training"


def _is_read(figures: Figures) -> bool:
    """Returns whether a run's files could be read."""
    # damaged files of one job must not hide other jobs
    try:
        figures.points()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True
