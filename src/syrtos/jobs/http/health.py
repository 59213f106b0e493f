"""``/health``: whether the service does its work, for those who watch it."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from syrtos.jobs.polling import PollingThread


class Health:
    """Answers who asks for the service's health; the answer names no job, and needs no key.

    Args:
        threads: the threads without which nothing is done.
    """

    def __init__(self, threads: Sequence[PollingThread]) -> None:
        self._threads = threads

    def serves(self, request: Request) -> bool:
        """Returns whether a request without a signature is for ``/health``."""
        return request.url.path == "/health"

    async def answer(self, request: Request) -> Response:
        """Answers 200 if all threads do their work, and else 503 with what is wrong."""
        if request.method not in ("GET", "HEAD"):
            return JSONResponse({"status": "unknown"}, 405)
        faults = [fault for thread in self._threads if (fault := thread.fault())]
        facts = {
            "status": "failing" if faults else "ok",
            "faults": faults,
            "restarts": {thread.name: thread.deaths for thread in self._threads},
        }
        return JSONResponse(facts, 503 if faults else 200, {"Cache-Control": "no-store"})
