"""The terminal of a run: what workers print, as it comes, but for events and for what tells a user nothing."""

from __future__ import annotations

import dataclasses
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from syrtos.launch import events
from syrtos.launch.noise import is_noise, may_be_noise


@dataclasses.dataclass(frozen=True)
class Listener:
    """What becomes of lines that are not passed on.

    Attributes:
        on_event: called with each event, by the threads of several pumps.
        quiet: whether lines that frameworks print on each start are left out.
    """

    on_event: Callable[[dict[str, Any]], None]
    quiet: bool


class Pump:
    """A thread that passes the bytes of one pipe on to one stream."""

    def __init__(self, source: IO[bytes], target: IO[str], listener: Listener) -> None:
        self._source, self._target, self._listener = source, target, listener
        self._passing_on = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Waits until all writers have closed the pipe."""
        self._thread.join(timeout)

    def is_drained(self) -> bool:
        """Whether everything that is in the pipe has been passed on; what a process has written before its end, if that is over."""
        if not self._thread.is_alive():
            return True
        if not self._passing_on.acquire(blocking=False):
            return False
        try:
            return not _readable(self._source, 0)
        finally:
            self._passing_on.release()

    def _run(self) -> None:
        pending = b""
        over = False
        while not over:
            _readable(self._source, None)
            with self._passing_on:
                chunk = os.read(self._source.fileno(), 1 << 16)
                over = not chunk
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    self._take(line + b"\n")
                if pending and not _may_be_special(pending):
                    _emit(pending, self._target)
                    pending = b""
        if pending:
            self._take(pending)

    def _take(self, line: bytes) -> None:
        before, mark, rest = line.partition(events.MARK)
        event = events.parse(mark + rest)
        if event is not None:
            _emit(before, self._target)  # a worker's unfinished line
            self._listener.on_event(event)
        elif not line.startswith(_MPIS) and not (self._listener.quiet and is_noise(line)):
            _emit(line, self._target)


def _readable(source: IO[bytes], milliseconds: int | None) -> bool:
    """Whether there is something to read, or the end, within this time; not by select(2), which knows 1024 descriptors."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(milliseconds))


# What MPI prints of its own accord when a worker calls MPI_Abort.
_MPIS = (b"Abort(", b"application called MPI_Abort")


def _may_be_special(pending: bytes) -> bool:
    begins = any(known.startswith(pending[: len(known)]) for known in _MPIS)
    return begins or may_be_noise(pending) or events.MARK[:1] in pending


def say(text: str) -> None:
    """A line of the launcher itself."""
    print(f"syrtos: {text}", file=sys.stderr, flush=True)


def _emit(data: bytes, target: IO[str]) -> None:
    buffer = getattr(target, "buffer", None)
    if buffer is None:
        target.write(data.decode(errors="replace"))
    else:
        buffer.write(data)
    target.flush()
