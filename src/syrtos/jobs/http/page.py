"""A page that shows jobs, curves, logs and artifacts. Its data are JSON under ``/ui``, which is no bucket's name."""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import math
import re
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from syrtos.errors import SyrtosError
from syrtos.jobs import logs, metrics
from syrtos.jobs.home import Home
from syrtos.jobs.places import Source
from syrtos.jobs.service import ApiError, Service, described
from syrtos.jobs.store import columns
from syrtos.launch.generations import all_folders
from syrtos.observe.report import SHARES, SecondsByRank

_FILES = {"/": "page.html", "/ui/page.css": "page.css", "/ui/page.js": "page.js", "/ui/icon.svg": "icon.svg"}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_SAFE = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_JOB = r"/ui/jobs/([A-Za-z0-9-]{1,63})"


def token(home: Home) -> str:
    """The token of a browser: in the address that `syrtos serve` prints, then in a cookie."""
    return hmac.new(home.keys()[1].encode(), b"page", hashlib.sha256).hexdigest()


class Page:
    """Answers browsers."""

    def __init__(self, service: Service, changed: Callable[[], None]) -> None:
        self._service = service
        self._changed = changed
        self._token = token(service.home)
        self._sums: dict[Path, SecondsByRank] = {}
        self._summing = threading.Lock()

    def serves(self, request: Request) -> bool:
        """Whether a request without a signature is for the page."""
        return request.url.path == "/" or request.url.path.startswith("/ui")

    async def answer(self, request: Request) -> Response:
        """One request."""
        given = request.query_params.get("token")
        if given is not None and hmac.compare_digest(given.encode(), self._token.encode()):
            response = RedirectResponse("/", 303, _SAFE)
            secure = request.url.scheme == "https"
            response.set_cookie(
                _cookie(request), self._token, httponly=True, samesite="strict", secure=secure, max_age=30 * 86400
            )
            return response
        if not hmac.compare_digest(request.cookies.get(_cookie(request), "").encode(), self._token.encode()):
            text = "Open the address that `syrtos serve` has printed: it holds the key to this page.\n"
            return Response(text, 403, _SAFE, "text/plain; charset=utf-8")
        if request.method == "POST":
            return await self._stop(request)
        if request.method != "GET":
            return _json({"error": "The page only reads, and stops jobs."}, 405)
        return await self._get(request)

    async def _get(self, request: Request) -> Response:
        path = request.url.path
        if path in _FILES:
            name = _FILES[path]
            text = (resources.files("syrtos.jobs.http") / "static" / name).read_bytes()
            return Response(text, 200, _SAFE, _TYPES[name.rpartition(".")[2]])
        pages: tuple[tuple[str, Callable[..., Response]], ...] = (
            (r"/ui/jobs", self._jobs),
            (_JOB, self._job),
            (_JOB + r"/logs/(\d+)", self._logs),
            (_JOB + r"/(model|output)", self._artifact),
        )
        for pattern, page in pages:
            found = re.fullmatch(pattern, path)
            if found:
                return await run_in_threadpool(functools.partial(page, request, *found.groups()))
        return _json({"error": "There is no such page."}, 404)

    async def _stop(self, request: Request) -> Response:
        """Only from the page itself: another site's form can't send this header."""
        found = re.fullmatch(_JOB + "/stop", request.url.path)
        if not found or request.headers.get("x-syrtos") != "page":
            return _json({"error": "There is nothing to be done here."}, 404)
        try:
            await run_in_threadpool(self._service.stop_training_job, {"TrainingJobName": found[1]})
        except ApiError as error:
            return _json({"error": str(error)}, 409)
        self._changed()
        return _json({})

    def _jobs(self, _request: Request) -> Response:
        found, _ = self._service.store.find([], [columns.created.desc()], 0, 200)
        return _json({"jobs": [_row(described(record)) for record in found], "capacity": self._service.capacity})

    def _job(self, _request: Request, name: str) -> Response:
        record = self._service.store.get(name)
        if record is None:
            return _json({"error": f"There is no job {name}."}, 404)
        folder = self._service.home.job(name)
        attempts = sorted(folder.glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        runs = [run for attempt in attempts for run in all_folders(attempt)]
        artifacts = {kind: self._source(described(record), kind) is not None for kind in ("model", "output")}
        return _json(
            {
                "job": described(record),
                "streams": [stream.name for stream in logs.of(folder / "logs")],
                "epochs": [epoch for run in runs for epoch in metrics.epochs(run)],
                "kinds": SHARES,
                "ranks": self._seconds(runs[-1]) if runs else [],
                "artifacts": artifacts,
            }
        )

    def _seconds(self, run_dir: Path) -> list[dict[str, float]]:
        with self._summing:
            return self._sums.setdefault(run_dir, SecondsByRank(run_dir)).now()

    def _logs(self, request: Request, name: str, number: str) -> Response:
        streams = logs.of(self._service.home.job(name) / "logs")
        if int(number) >= len(streams):
            return _json({"error": "There is no such stream."}, 404)
        offset = request.query_params.get("offset", "0")
        start = int(offset) if offset.isdecimal() and len(offset) < 16 else 0
        events = streams[int(number)].read(start, 5000)
        lines = [{"time": event.time, "text": event.text} for event in events]
        return _json({"lines": lines, "offset": events[-1].end if events else start})

    def _artifact(self, _request: Request, name: str, kind: str) -> Response:
        record = self._service.store.get(name)
        source = self._source(described(record), kind) if record else None
        if source is None:
            return _json({"error": f"The job {name} has left no {kind}."}, 404)
        headers = {**_SAFE, "Content-Disposition": f'attachment; filename="{name}-{kind}.tar.gz"'}
        return StreamingResponse(source.read(), 200, headers, "application/gzip")

    def _source(self, job: dict[str, Any], kind: str) -> Source | None:
        uri = job["ModelArtifacts"]["S3ModelArtifacts"]
        name = f"{kind}.tar.gz"
        try:
            found = self._service.places.under(uri.removesuffix("model.tar.gz") + name)
        except SyrtosError:
            return None
        return next((source for source in found if source.name == name), None)


def _cookie(request: Request) -> str:
    """Browsers don't tell ports apart: another service of this machine has a cookie of its own."""
    return f"syrtos-{request.url.port or 443}"


def _row(job: dict[str, Any]) -> dict[str, Any]:
    names = ("TrainingJobName", "TrainingJobStatus", "SecondaryStatus", "CreationTime", "TrainingStartTime",
             "TrainingEndTime", "FailureReason", "ProgressInfo", "ResourceConfig", "BillableTimeInSeconds")  # fmt: skip
    return {name: job[name] for name in names if name in job}


def _json(facts: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(_finite(facts), allow_nan=False), status, _SAFE, "application/json")


def _finite(value: Any) -> Any:
    """A loss may be NaN, which browsers don't read as JSON."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
