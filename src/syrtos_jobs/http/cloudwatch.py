"""The part of CloudWatch Logs that shows the output of training jobs.

It has streams, pages, and the requests of `aws logs tail --follow`.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from syrtos_jobs.api.service import ApiError, Service
from syrtos_jobs.observation import logs
from syrtos_jobs.observation.logs import LogEvent, LogStream
from syrtos_jobs.store.home import ACCOUNT, REGION

_MOST = 10_000


class LogsService:
    """Answers from the streams of a service's jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe_log_groups(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Returns the only group, if it has the name that is asked for."""
        prefix = request.get("logGroupNamePrefix") or request.get("logGroupNamePattern") or ""
        group = {"logGroupName": logs.GROUP, "creationTime": 0, "storedBytes": 0, "arn": _arn()}
        return {"logGroups": [group] if prefix in logs.GROUP else []}

    def describe_log_streams(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Returns a page of streams, sorted by name."""
        _check_group(request)
        found = list(self._streams(request.get("logStreamNamePrefix") or ""))
        found.sort(key=lambda stream: stream.name, reverse=bool(request.get("descending")))
        after, limit = _number(request.get("nextToken")), request.get("limit") or 50
        page = [_describe_stream(stream) for stream in found[after : after + limit]]
        more = {"nextToken": str(after + limit)} if len(found) > after + limit else {}
        return {"logStreams": page, **more}

    def get_log_events(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Returns a page of one stream."""
        _check_group(request)
        stream, limit = (
            self._stream(request["logStreamName"]),
            min(request.get("limit") or _MOST, _MOST),
        )
        token = request.get("nextToken") or (
            "f/0" if request.get("startFromHead") else f"b/{stream.size}"
        )
        direction, offset = token[:2], _number(token[2:])
        if direction not in ("f/", "b/") or offset > stream.size:
            raise ApiError("InvalidParameterException", "The specified nextToken is invalid.")
        if direction == "f/":
            events, begin = stream.read(offset, limit), offset
        else:
            events = stream.before(offset, limit)
            begin = _begin_of(stream, events) if events else 0
        # at the stream's end it is the token that was given: a client that waits for more asks with
        # it again
        end = events[-1].end if events else offset
        return {
            "events": [_describe_event(event) for event in events if _in_time(event, request)],
            "nextForwardToken": f"f/{end}",
            "nextBackwardToken": f"b/{begin}",
        }

    def filter_log_events(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Returns a page of the events of several streams, sorted by time."""
        _check_group(request)
        names = request.get("logStreamNames")
        prefix = request.get("logStreamNamePrefix") or ""
        streams = [self._stream(name) for name in names] if names else list(self._streams(prefix))
        is_wanted, limit = (
            _filter(request.get("filterPattern") or ""),
            request.get("limit") or _MOST,
        )
        offsets = _offsets(request.get("nextToken"))

        def choose_events(stream: LogStream) -> Iterator[tuple[LogEvent, LogStream]]:
            for event in stream.all(offsets.get(stream.name, 0)):
                if _in_time(event, request) and is_wanted(event.text):
                    yield event, stream

        # of each stream only what a page needs is read: one may be longer than memory. One event
        # more than the page has shows whether another page follows
        merged = heapq.merge(
            *map(choose_events, streams), key=lambda pair: (pair[0].time, pair[1].name, pair[0].end)
        )
        found = list(itertools.islice(merged, limit + 1))
        page = found[:limit]
        offsets |= {stream.name: event.end for event, stream in page}
        events = [
            {
                **_describe_event(event),
                "logStreamName": stream.name,
                "eventId": f"{stream.name}:{event.end}",
            }
            for event, stream in page
        ]
        return {
            "events": events,
            **({"nextToken": json.dumps(offsets)} if len(found) > limit else {}),
        }

    def _streams(self, prefix: str) -> Iterator[LogStream]:
        job, slash, _ = prefix.partition("/")
        if slash:
            # the name becomes a path
            folders = [self._service.home.job(job)] if re.fullmatch(r"[A-Za-z0-9-]+", job) else []
        else:
            # names have no other letters, which could mean something in a pattern
            folders = sorted(self._service.home.jobs.glob(re.sub(r"[^A-Za-z0-9-]", "?", job) + "*"))
        for folder in folders:
            yield from (
                stream for stream in logs.of(folder / "logs") if stream.name.startswith(prefix)
            )

    def _stream(self, name: str) -> LogStream:
        found = next((stream for stream in self._streams(name) if stream.name == name), None)
        if found is None:
            raise ApiError("ResourceNotFoundException", "The specified log stream does not exist.")
        return found


def _offsets(token: str | None) -> dict[str, int]:
    """Returns the byte at which a page of several streams begins in each stream, by its name."""
    try:
        return {str(name): int(offset) for name, offset in json.loads(token or "{}").items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ApiError(
            "InvalidParameterException", "The specified nextToken is invalid."
        ) from error


def _check_group(request: Mapping[str, Any]) -> None:
    name = request.get("logGroupName") or request.get("logGroupIdentifier") or ""
    if name != logs.GROUP and not name.startswith(_arn()):
        raise ApiError("ResourceNotFoundException", "The specified log group does not exist.")


def _arn() -> str:
    return f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{logs.GROUP}"


def _describe_stream(stream: LogStream) -> dict[str, object]:
    began = int(stream.name.rpartition("-")[2]) * 1000
    facts = {
        "logStreamName": stream.name,
        "creationTime": began,
        "arn": f"{_arn()}:log-stream:{stream.name}",
    }
    first = stream.read(0, 1)
    if first:
        changed = int(stream.path.stat().st_mtime * 1000)
        facts |= {
            "firstEventTimestamp": first[0].time,
            "lastEventTimestamp": changed,
            "lastIngestionTime": changed,
        }
    return facts | {"uploadSequenceToken": "0", "storedBytes": 0}


def _describe_event(event: LogEvent) -> dict[str, object]:
    # the service's model allows no empty message
    return {"timestamp": event.time, "message": event.text or " ", "ingestionTime": event.time}


def _in_time(event: LogEvent, request: Mapping[str, Any]) -> bool:
    return request.get("startTime", 0) <= event.time and event.time < request.get(
        "endTime", 1 << 60
    )


def _begin_of(stream: LogStream, events: list[LogEvent]) -> int:
    """Returns the byte at which the first of some events begins."""
    # an event knows its end alone: it begins where the one before ends
    before = stream.before(events[0].end - 1, 1)
    return before[-1].end if before else 0


def _filter(pattern: str) -> Callable[[str], bool]:
    """Returns whether an event's text matches a pattern of words, as CloudWatch Logs defines it.

    All words must stand in it, of those with `?` before them one, and of those with `-` none.

    Raises:
        ApiError: it is a pattern of another kind.
    """
    if pattern.lstrip().startswith(("{", "[", "%")):
        raise ApiError(
            "InvalidParameterException",
            "A filterPattern is words here: all of them, `?a ?b` for one of them, `-a` for none.",
        )
    try:
        terms = shlex.split(pattern)
    except ValueError as error:
        raise ApiError(
            "InvalidParameterException", f"The filterPattern can't be read: {error}."
        ) from error
    none, one = ([t[1:] for t in terms if t[0:1] == mark and len(t) > 1] for mark in "-?")
    every = [t for t in terms if t[:1] not in ("-", "?") or len(t) == 1]
    return lambda text: (
        all(term in text for term in every)
        and (not one or any(term in text for term in one))
        and not any(term in text for term in none)
    )


def _number(token: str | None) -> int:
    if not token:
        return 0
    if not token.isdecimal() or len(token) > 15:
        raise ApiError("InvalidParameterException", "The specified nextToken is invalid.")
    return int(token)
