"""A line at the bottom of a terminal, shown while nothing else is printed there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol

from syrtos.launch.terminal import streams

# Seconds without output before the line is shown, and between two looks.
_PATIENCE, _BETWEEN = 3.0, 2.0
# Where a terminal does not say how wide it is.
_COLUMNS = 80
_ERASE = b"\r\x1b[2K"


class Output(Protocol):
    """An output of this process, which announces each write.

    Attributes:
        before_write: gets the data of a write; None: nobody wants it.
    """

    before_write: Callable[[memoryview], None] | None


class LiveLine:
    """Shows a line on the terminal of standard error until something else is printed.

    A context manager; without a terminal it does nothing. The line is drawn where the cursor stands
    at the beginning of a line, and erased before its outputs write anything else.
    """

    def __init__(
        self, describe: Callable[[], str], outputs: Mapping[int, Output] | None = None
    ) -> None:
        """Makes the line.

        Args:
            describe: returns the text, which is cut to the width of the terminal; empty: nothing is
                shown. It is called in a thread of its own.
            outputs: what writes to descriptors 1 and 2; None: the unfailing files of this process.
        """
        self._describe = describe
        if outputs is None:
            outputs = {number: file for number in (1, 2) if (file := streams.raw_file(number))}
        self._outputs = {number: out for number, out in outputs.items() if os.isatty(number)}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._is_shown, self._line_is_open, self._last_output = False, False, time.monotonic()
        self._thread = threading.Thread(target=self._run, name="live line", daemon=True)

    def __enter__(self) -> LiveLine:
        if 2 in self._outputs and os.environ.get("TERM", "dumb") != "dumb":
            for output in self._outputs.values():
                output.before_write = self._make_room
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_BETWEEN)
        for output in self._outputs.values():
            output.before_write = None
        # whoever holds it may wait for a terminal that takes nothing (Ctrl-S)
        if self._lock.acquire(timeout=_BETWEEN):
            self._erase()
            self._lock.release()

    def _run(self) -> None:
        while not self._over.wait(_BETWEEN):
            if self._line_is_open or not _is_in_foreground():
                continue
            if time.monotonic() - self._last_output < _PATIENCE:
                continue
            # a run goes on whatever its record looks like
            try:
                text = self._describe()
                columns = os.get_terminal_size(2).columns or _COLUMNS
            except Exception:
                continue
            with self._lock:
                # something may have been printed meanwhile
                is_quiet = time.monotonic() - self._last_output >= _PATIENCE
                if text and is_quiet and not self._line_is_open and not self._over.is_set():
                    self._write(_ERASE + text[: columns - 1].encode(errors="replace"))
                    self._is_shown = True

    def _make_room(self, data: memoryview) -> None:
        """Erases the line before ``data`` is written."""
        if not data:
            return
        with self._lock:
            self._erase()
            self._line_is_open = data[-1:] != b"\n"
            self._last_output = time.monotonic()

    def _erase(self) -> None:
        # in the background a shell may have written over it
        if self._is_shown and _is_in_foreground():
            self._write(_ERASE)
        self._is_shown = False

    def _write(self, data: bytes) -> None:
        try:
            os.write(2, data)
        except OSError:  # the terminal is gone
            self._over.set()


def _is_in_foreground() -> bool:
    """Returns whether the terminal is this process's, and not the shell's that has started it."""
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        return False
