"""Spans of this process between two moments, for a profile.

The spans are those that the clock counts, exchanges between workers, and steps.

`recorder` is None except while a profile is made; code that could add a span looks at it first,
which takes some nanoseconds.
"""

from __future__ import annotations

import dataclasses
import threading
import time

_MOST = 200_000


@dataclasses.dataclass(frozen=True)
class Span:
    """A span of time in which something went on.

    Attributes:
        track: the line that it is shown on.
        name: what went on.
        start: the start, in seconds of `time.perf_counter`.
        end: the end, in seconds of `time.perf_counter`.
    """

    track: str
    name: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class ProfiledEvent:
    """An event that a framework's profiler saw.

    Attributes:
        line: the thread, stream or device.
        name: what went on.
        start: the start, in seconds of the profiler's clock.
        seconds: its duration.
    """

    line: str
    name: str
    start: float
    seconds: float


class SpanRecorder:
    """A record of spans, from any thread: the first 200,000, some 30 MB.

    Attributes:
        began: the moment at which it began, in seconds of `time.perf_counter`.
        left_out: the number of spans that came later.
    """

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self._spans: list[Span] = []
        self._lock = threading.Lock()
        self.left_out = 0

    def add(self, track: str, name: str, start: float, end: float) -> None:
        """Notes a span, as far as it is after the beginning."""
        if end > self.began and end > start:
            with self._lock:
                if len(self._spans) < _MOST:
                    self._spans.append(Span(track, name, max(start, self.began), end))
                else:
                    self.left_out += 1

    def spans(self) -> list[Span]:
        """Returns all spans so far."""
        with self._lock:
            return list(self._spans)


class _ProcessRecorder:
    """The recorder of this process, while a profile is made."""

    recorder: SpanRecorder | None = None


state = _ProcessRecorder()
