"""The clock of a worker: at any moment its time is of one kind.

The kinds therefore add up to the whole by construction.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from syrtos.observe import trace

Kind = Literal[
    "start", "import", "build", "trace", "input", "compute", "update", "exchange", "wait", "callbacks", "checkpoint", "profile", "rest",
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "start", "import", "build", "trace", "input", "compute", "update", "exchange", "wait", "callbacks", "checkpoint", "profile", "rest",
)  # fmt: skip
Phase = Literal["script", "loop", "fit", "train", "test", "predict"]


class ClockPart:
    """A part of a run that has its own records, e.g. a step.

    Attributes:
        phase: the kind of part.
        kind: the kind of time that passes now.
        is_step: whether it is one step, and not a part that contains steps.
        seconds: time since the last record, by kind; kinds without time are absent.
        wall: the sum of ``seconds``.
        samples: training samples of this worker since the last record.
    """

    __slots__ = ("is_step", "kind", "phase", "samples", "seconds", "wall")

    def __init__(self, phase: Phase, kind: Kind, is_step: bool = False) -> None:
        self.phase: Phase = phase
        self.kind: Kind = kind
        self.is_step = is_step
        self.clear()

    def clear(self) -> None:
        """Begins anew, after a record."""
        self.seconds: dict[Kind, float] = {}
        self.wall = self.samples = 0.0

    def add(self, kind: Kind, seconds: float) -> None:
        """Adds seconds of one kind."""
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.wall += seconds

    def take(self, other: ClockPart) -> None:
        """Adds the time and samples of another part, which will not be recorded itself."""
        for kind, seconds in other.seconds.items():
            self.add(kind, seconds)
        self.samples += other.samples


class Clock:
    """A counter of a worker's time: a stack of parts, of which the uppermost gets the passing time.

    It follows one thread: the one that has made it, or that opens the first part above the script's
    own, until that part ends. Other threads can only attribute (`spend`) a part of the time in
    which that thread waits for them.
    """

    def __init__(self, age: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        """Starts the clock; ``age`` are seconds that have passed already, of the kind ``start``."""
        self._now = now
        self._since = now() - age
        self._moved = 0.0  # seconds since then that `spend` has counted
        self._marked: float | None = None
        # a signal handler of the script may save a model in the middle of a tick
        self._lock = threading.RLock()
        self._home = self._thread = threading.get_ident()
        self.parts = [ClockPart("script", "start")]

    @property
    def top(self) -> ClockPart:
        """The part that time goes to now."""
        return self.parts[-1]

    @property
    def is_mine(self) -> bool:
        """Returns whether the clock follows this thread."""
        return self._thread == threading.get_ident()

    def tick(self) -> None:
        """Counts the time until now."""
        with self._lock:
            now, part = self._now(), self.parts[-1]
            part.add(part.kind, now - self._since - self._moved)
            if recorder := trace.state.recorder:
                recorder.add("worker", part.kind, self._since, now)
            self._since, self._moved, self._marked = now, 0.0, None

    def become(self, kind: Kind) -> None:
        """Makes the time of the uppermost part be of this kind from now on."""
        if self.is_mine:
            self.tick()
            self.parts[-1].kind = kind

    def spend(self, kind: Kind, seconds: float, name: str = "") -> None:
        """Attributes ``seconds`` of the time since the last change to ``kind``.

        A profile shows them as ``name``.
        """
        # a profile has each agreement by its name
        if (recorder := trace.state.recorder) and kind != "wait":
            now = self._now()
            recorder.add(
                "exchange" if kind == "exchange" else "input and update",
                name or kind,
                now - seconds,
                now,
            )
        with self._lock:
            part = self.parts[-1]
            # Time that was attributed before is not counted again.
            seconds = min(seconds, self._open())
            if seconds > 0 and part.kind != "start":
                part.add(kind, seconds)
                self._moved += seconds

    def mark(self) -> None:
        """Remembers this moment of the step that goes on, for `spend_since_mark`.

        It may be called in any thread.
        """
        with self._lock:
            self._marked = self._open()

    def spend_since_mark(self, kind: Kind) -> None:
        """Attributes the time since the mark that was not attributed yet to ``kind``.

        It does nothing if the step that goes on has no mark.
        """
        with self._lock:
            marked, self._marked = self._marked, None
            if marked is not None:
                self.spend(kind, self._open() - marked)

    def _open(self) -> float:
        """Returns the seconds since the last change that `spend` has not counted."""
        return self._now() - self._since - self._moved

    def begin(self, phase: Phase, kind: Kind, is_step: bool = False) -> ClockPart | None:
        """Opens a part on top of the others, which stand still until it is closed.

        Returns:
            The part; None where the clock follows another thread.
        """
        if len(self.parts) == 1:
            self._thread = threading.get_ident()
        elif not self.is_mine:
            return None
        self.tick()
        part = ClockPart(phase, kind, is_step)
        self.parts.append(part)
        return part

    def unwind(self, part: ClockPart) -> None:
        """Closes parts that are still open above ``part``, and adds their time to it.

        Such a part is, for example, a step that found the data exhausted.
        """
        self.tick()
        while part in self.parts and self.parts[-1] is not part:
            above = self.parts.pop()
            self.parts[-1].take(above)

    def end(self, part: ClockPart) -> None:
        """Closes a part, whose seconds then are complete."""
        self.unwind(part)
        # else another thread has closed it with what was below
        if self.parts[-1] is part:
            self.parts.pop()
        if len(self.parts) == 1:
            self._thread = self._home

    @contextmanager
    def span(self, kind: Kind) -> Iterator[None]:
        """Context manager: counts its block as ``kind``, without inner blocks of other kinds."""
        if not self.is_mine:
            yield
            return
        part = self.parts[-1]
        before = part.kind
        self.become(kind)
        try:
            yield
        finally:
            # else another thread has opened a part meanwhile, which goes on
            if self.is_mine:
                self.unwind(part)
            part.kind = before


def process_age() -> float:
    """Returns the seconds since this process was started.

    The start is read from field 22 of ``stat`` (proc(5)). On systems without it the result is 0.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return max(
            time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"),
            0.0,
        )
    except (OSError, AttributeError):
        return 0.0
