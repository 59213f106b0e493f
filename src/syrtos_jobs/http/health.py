"""``/health``: whether the service does its work, for those who watch it."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from syrtos_jobs.complaints import FULL
from syrtos_jobs.polling import PollingThread
from syrtos_jobs.store.reserve import Reserve


class Health:
    """Answers who asks for the service's health; the answer names no job, and needs no key.

    Args:
        threads: the threads without which nothing is done.
        reserve: knows whether the service's disk is full.
    """

    def __init__(self, threads: Sequence[PollingThread], reserve: Reserve) -> None:
        self._threads, self._reserve = threads, reserve

    def serves(self, request: Request) -> bool:
        """Returns whether a request without a signature is for ``/health``."""
        return request.url.path == "/health"

    async def answer(self, request: Request) -> Response:
        """Answers 200 if all threads do their work and can write, else 503 with what is wrong."""
        if request.method not in ("GET", "HEAD"):
            return JSONResponse({"status": "unknown"}, 405)
        faults = [fault for thread in self._threads if (fault := thread.fault())]
        faults += [FULL] * self._reserve.is_needed()
        facts = {
            "status": "failing" if faults else "ok",
            "faults": faults,
            "restarts": {thread.name: thread.deaths for thread in self._threads},
        }
        return JSONResponse(facts, 503 if faults else 200, {"Cache-Control": "no-store"})
