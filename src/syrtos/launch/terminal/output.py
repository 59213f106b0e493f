"""The terminal of a run, which shows what workers print, as it comes.

Events, and lines that tell a user nothing, are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from syrtos.launch import events
from syrtos.launch.terminal.noise import is_noise, may_be_noise
from syrtos.launch.terminal.reader import Reader


@dataclasses.dataclass(frozen=True)
class Listener:
    """A receiver of the lines that are not passed on."""

    on_event: Callable[[dict[str, Any]], None]
    quiet: bool


class Pump(Reader):
    """A thread that passes what comes through a pipe on to a stream.

    It does so line by line where it must be known what a line is.

    Attributes:
        line_is_open: whether what was passed on last does not end a line.
        last_said: the end of what was passed on.
    """

    def __init__(self, source: IO[bytes], target: IO[str], listener: Listener) -> None:
        self._target, self._listener = target, listener
        self._pending = b""
        self.line_is_open = False
        self.last_said = b""
        super().__init__(source, self._pass_on)

    def _pass_on(self, piece: bytes) -> None:
        *lines, self._pending = (self._pending + piece).split(b"\n")
        for line in lines:
            self._take_line(line + b"\n")
        if self._pending and not piece:
            self._take_line(self._pending)
        elif self._pending and not _may_be_special(self._pending):
            self._emit(self._pending)
            self._pending = b""

    def _take_line(self, line: bytes) -> None:
        before, mark, rest = line.partition(events.MARK)
        event = events.parse(mark + rest)
        if event is not None:
            # A worker's line that was not finished when the event came.
            self._emit(before)
            try:
                self._listener.on_event(event)
            except (KeyError, TypeError, ValueError):
                # a line of the script's own that only begins as an event does
                self._emit(mark + rest)
        elif not line.startswith(_MPIS) and not (self._listener.quiet and is_noise(line)):
            self._emit(line)

    def _emit(self, data: bytes) -> None:
        if data:
            self.line_is_open = not data.endswith(b"\n")
            self.last_said = (self.last_said + data)[-_KEPT:]
        buffer = getattr(self._target, "buffer", None)
        # Nobody reads it any more, or its disk is full: the lines that follow may be events, without
        # which the run ends otherwise.
        with contextlib.suppress(OSError, ValueError):
            if buffer is None:
                self._target.write(data.decode(errors="replace"))
            else:
                buffer.write(data)
            self._target.flush()


_KEPT = 4096  # bytes
# What MPI prints of its own accord when a worker calls MPI_Abort.
_MPIS = (b"Abort(", b"application called MPI_Abort")


def _may_be_special(pending: bytes) -> bool:
    begins = any(known.startswith(pending[: len(known)]) for known in _MPIS)
    return begins or may_be_noise(pending) or events.MARK[:1] in pending


def end_line() -> None:
    """Ends the line at which the cursor of a terminal stands; prints nothing elsewhere."""
    if sys.stderr.isatty():
        print(file=sys.stderr, flush=True)


@contextlib.contextmanager
def show_wait(what: str) -> Iterator[None]:
    """Context manager: a terminal shows what is waited for, and then how long it has taken."""
    began = time.monotonic()
    if sys.stderr.isatty():
        print(f"syrtos: {what} ... ", end="", file=sys.stderr, flush=True)
    yield
    if sys.stderr.isatty():
        print(f"{time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Prints a line of the launcher itself."""
    print(f"syrtos: {text}", file=sys.stderr, flush=True)
