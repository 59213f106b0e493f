"""The page that shows jobs, curves, logs and artifacts.

Its data are JSON under ``/ui``, which is no bucket's name.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import TypedDict, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from syrtos.errors import ConfigurationError
from syrtos.report.page import finite
from syrtos_jobs.api import cloning
from syrtos_jobs.api.service import ApiError, Service, describe_job
from syrtos_jobs.http import bodies, model
from syrtos_jobs.http.details import Details
from syrtos_jobs.http.listing import Listing
from syrtos_jobs.http.reports import Reports
from syrtos_jobs.http.searches import Searches
from syrtos_jobs.observation import logs
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Record
from syrtos_jobs.tuning.operations import Operations

_STATIC = (
    "page.css",
    "page.js",
    "base.js",
    "list.js",
    "about.js",
    "clone.js",
    "search.js",
    "icon.svg",
)
_REPORT = ("report.js", "report.css", "echarts.min.js")
_FILES = {"/": "page.html"} | {f"/ui/{name}": name for name in (*_STATIC, *_REPORT)}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_SAFE = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri"
        " 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_JOB = r"/ui/jobs/([A-Za-z0-9-]{1,63})"
_SEARCH = r"/ui/tuning/([A-Za-z0-9-]{1,32})"


def token(home: Home) -> str:
    """Returns the token of a browser.

    The token is in the address that `syrtos serve` prints, and then in a cookie.
    """
    return hmac.new(home.keys()[1].encode(), b"page", hashlib.sha256).hexdigest()


class CloneAsked(TypedDict):
    """Fields of a request for a clone: its name, hyperparameters as JSON, and secrets by name."""

    name: str
    hyperparameters: str
    secrets: dict[str, str]


class Page:
    """Answers browsers."""

    def __init__(self, service: Service, changed: Callable[[], None]) -> None:
        self._service = service
        self._changed = changed
        self._token = token(service.home)
        self._listing = Listing(service)
        self._details = Details(service)
        self._reports = Reports(service)
        self._searches = Searches(service)

    def serves(self, request: Request) -> bool:
        """Returns whether a request without a signature is for the page."""
        return request.url.path == "/" or request.url.path.startswith("/ui")

    async def answer(self, request: Request) -> Response:
        """Answers a request, whose token is checked."""
        given = request.query_params.get("token")
        # in constant time, or the time of an answer would tell how much of a guess is right
        if given is not None and hmac.compare_digest(given.encode(), self._token.encode()):
            # the token is in no address any more that could be copied or stay in the history
            response = RedirectResponse("/", 303, _SAFE)
            secure = request.url.scheme == "https"
            response.set_cookie(
                _cookie(request),
                self._token,
                httponly=True,
                samesite="strict",
                secure=secure,
                max_age=30 * 86400,
            )
            return response
        if not hmac.compare_digest(
            request.cookies.get(_cookie(request), "").encode(), self._token.encode()
        ):
            text = (
                "Open the address that `syrtos serve` has printed: it holds the key to this page.\n"
            )
            return Response(text, 403, _SAFE, "text/plain; charset=utf-8")
        if request.method == "POST":
            return await self._post(request)
        if request.method != "GET":
            return _json({"error": "The page reads, stops and clones jobs."}, 405)
        return await self._get(request)

    async def _get(self, request: Request) -> Response:
        path = request.url.path
        if path in _FILES:
            name = _FILES[path]
            room = "syrtos.report" if name in _REPORT else "syrtos_jobs.http"
            text = (resources.files(room) / "static" / name).read_bytes()
            return Response(text, 200, _SAFE, _TYPES[name.rpartition(".")[2]])
        pages: tuple[tuple[str, Callable[..., Response]], ...] = (
            (r"/ui/jobs", self._jobs),
            (_JOB, self._job),
            (_SEARCH, self._search),
            (_JOB + r"/report", self._report),
            (_JOB + r"/report.html", self._report_file),
            (_JOB + r"/logs/(\d+)", self._logs),
            (_JOB + r"/logs/(\d+)/download", self._log),
            (_JOB + r"/(model|output)", self._artifact),
        )
        for pattern, page in pages:
            found = re.fullmatch(pattern, path)
            if found:
                return await run_in_threadpool(functools.partial(page, request, *found.groups()))
        return _json({"error": "There is no such page."}, 404)

    async def _post(self, request: Request) -> Response:
        """Changes a job or a search, only for the page itself."""
        found = re.fullmatch(_JOB + "/(stop|clone)", request.url.path) or re.fullmatch(
            _SEARCH + "/(end)", request.url.path
        )
        # another site's form can't send a header: without it, such a form could act with this
        # browser's cookie
        if not found or request.headers.get("x-syrtos") != "page":
            return _json({"error": "There is nothing to be done here."}, 404)
        body = await bodies.read_short(request)
        action = {"stop": self._stop, "clone": self._clone, "end": self._end_search}[found[2]]
        try:
            answer = await run_in_threadpool(action, found[1], body)
        except (ApiError, ConfigurationError) as error:
            return _json({"error": str(error)}, 409)
        self._changed()
        return _json(answer)

    def _stop(self, name: str, body: bytes) -> dict[str, object]:
        return self._service.stop_training_job({"TrainingJobName": name})

    def _end_search(self, name: str, body: bytes) -> dict[str, object]:
        return Operations(self._service).stop_hyper_parameter_tuning_job(
            {"HyperParameterTuningJobName": name}
        )

    def _clone(self, name: str, body: bytes) -> dict[str, object]:
        """Creates a job like this one, by a request that is checked like one from outside."""
        asked = _clone_asked(body)
        request = cloning.request_of(self._find_record(name), **asked)
        operation = model.service_model("sagemaker").operation_model("CreateTrainingJob")
        self._service.create_training_job(
            model.parse_request(model.input_of(operation), json.dumps(request).encode())
        )
        return {"name": asked["name"]}

    def _jobs(self, request: Request) -> Response:
        wanted = request.query_params
        answer = self._listing.answer(wanted.get("search", ""), wanted.get("status", ""))
        return _json(answer | {"searches": self._searches.rows()})

    def _search(self, _request: Request, name: str) -> Response:
        record = self._service.tunings.get(name)
        if record is None:
            return _json({"error": f"There is no tuning job {name}."}, 404)
        return _json(self._searches.answer(record))

    def _job(self, _request: Request, name: str) -> Response:
        record = self._service.store.get(name)
        return _json(self._details.answer(record)) if record else _no_job(name)

    def _report(self, _request: Request, name: str) -> Response:
        record = self._service.store.get(name)
        return _json({"facts": self._reports.of(record)}) if record else _no_job(name)

    def _report_file(self, _request: Request, name: str) -> Response:
        record = self._service.store.get(name)
        text = self._reports.page(record) if record else None
        if text is None:
            return _json({"error": f"The job {name} has left no report."}, 404)
        return Response(
            text, 200, _attachment_headers(f"{name}-report.html"), "text/html; charset=utf-8"
        )

    def _logs(self, request: Request, name: str, number: str) -> Response:
        stream = self._stream(name, number)
        if stream is None:
            return _no_stream()
        offset = request.query_params.get("offset", "0")
        start = int(offset) if offset.isdecimal() and len(offset) < 16 else 0
        events = stream.read(start, 5000)
        lines = [{"time": event.time, "text": event.text} for event in events]
        return _json({"lines": lines, "offset": events[-1].end if events else start})

    def _log(self, _request: Request, name: str, number: str) -> Response:
        stream = self._stream(name, number)
        if stream is None:
            return _no_stream()
        file = f"{name}-{stream.path.stem.rpartition('-')[0]}.log"
        return StreamingResponse(
            stream.text(), 200, _attachment_headers(file), "text/plain; charset=utf-8"
        )

    def _stream(self, name: str, number: str) -> logs.LogStream | None:
        streams = logs.of(self._service.home.job(name) / "logs")
        return streams[int(number)] if len(number) < 6 and int(number) < len(streams) else None

    def _artifact(self, _request: Request, name: str, kind: str) -> Response:
        record = self._service.store.get(name)
        source = self._details.artifact(describe_job(record), kind) if record else None
        if source is None:
            return _json({"error": f"The job {name} has left no {kind}."}, 404)
        return StreamingResponse(
            source.read(), 200, _attachment_headers(f"{name}-{kind}.tar.gz"), "application/gzip"
        )

    def _find_record(self, name: str) -> Record:
        record = self._service.store.get(name)
        if record is None:
            raise ApiError("ValidationException", f"There is no job {name}.")
        return record


def _clone_asked(body: bytes) -> CloneAsked:
    """Returns the fields of a request for a clone.

    Raises:
        ApiError: the body does not have these fields.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError("SerializationException", f"The body is no JSON: {error}.") from error
    kinds = {"name": str, "hyperparameters": str, "secrets": dict}
    typed = isinstance(found, dict) and all(
        isinstance(found.get(key), kind) for key, kind in kinds.items()
    )
    if not typed or not all(isinstance(value, str) for value in found["secrets"].values()):
        raise ApiError(
            "SerializationException",
            "A clone has a name, hyperparameters as a text, and secrets as texts.",
        )
    return cast(CloneAsked, {key: found[key] for key in kinds})


def _attachment_headers(name: str) -> dict[str, str]:
    return {**_SAFE, "Content-Disposition": f'attachment; filename="{name}"'}


def _no_job(name: str) -> Response:
    return _json({"error": f"There is no job {name}."}, 404)


def _no_stream() -> Response:
    return _json({"error": "There is no such stream."}, 404)


def _cookie(request: Request) -> str:
    """Returns the name of the cookie."""
    # with the port: browsers don't tell ports apart, and another service of this machine needs a
    # cookie of its own
    return f"syrtos-{request.url.port or 443}"


def _json(facts: Mapping[str, object], status: int = 200) -> Response:
    return Response(json.dumps(finite(facts), allow_nan=False), status, _SAFE, "application/json")
