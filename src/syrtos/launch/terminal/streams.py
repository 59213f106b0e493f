"""Standard output and error whose loss costs a process nothing.

Their reader may end, their disk may be full, and they may be closed: what can't be written is
dropped, and the process goes on.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable
from typing import Any, TextIO

_NAMES = {1: "stdout", 2: "stderr"}
_WORDS = {1: "standard output", 2: "standard error"}


class UnfailingFile(io.FileIO):
    """A descriptor to which writing never fails.

    Attributes:
        lost: the first error of a write; None as long as all was written.
        before_write: gets the data of each write before it is made; None: nobody wants it.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.lost: OSError | None = None
        self.before_write: Callable[[memoryview], None] | None = None

    def write(self, data: Any, /) -> int:
        """Writes all of ``data``, or drops what can't be written; returns its length."""
        view = memoryview(data).cast("B")
        if self.before_write:
            self.before_write(view)
        left = view
        try:
            while left:
                written = super().write(left)
                if written is None:  # a pipe that does not wait (O_NONBLOCK) is full
                    _await_room(self.fileno())
                left = left[written or 0 :]
        except OSError as error:
            self.lost = self.lost or error
        return len(view)


def _await_room(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def make_unfailing(errors: str | None = None) -> None:
    """Makes standard output and error of this process drop what can't be written, from now on.

    Descriptors 0 to 2 that are closed are opened, on nothing: a file would get their number.

    Args:
        errors: what becomes of characters that the encoding lacks; None: what did before.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # the lowest number that is free, which is this one
            os.open(os.devnull, os.O_RDWR)
    for descriptor, name in _NAMES.items():
        stream = _stream_like(descriptor, getattr(sys, name), errors)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream_like(descriptor: int, before: TextIO | None, errors: str | None) -> TextIO:
    """Returns a stream like the one ``before``, which may be None, on an `UnfailingFile`."""
    if before is not None and not isinstance(before, io.TextIOWrapper):
        return before  # a script, or a notebook, has put something else there
    raw = UnfailingFile(descriptor)
    if before is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", errors or "backslashreplace")
    try:
        before.flush()
    except OSError as error:
        raw.lost = error
    raw.name = getattr(before, "name", descriptor)
    is_unbuffered = isinstance(before.buffer, io.RawIOBase)  # as by `python -u`
    return io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),  # pyright: ignore[reportArgumentType]
        before.encoding,
        errors or before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


def flush() -> None:
    """Passes on the output that is still in buffers; a script may have closed them, or set None."""
    for name in _NAMES.values():
        with contextlib.suppress(AttributeError, ValueError, OSError):
            getattr(sys, name).flush()


def describe_loss() -> str:
    """Returns which of this process's streams were lost and why, in words; empty if none was."""
    return " and ".join(
        f"{_WORDS[descriptor]} ({lost.strerror or lost})"
        for descriptor in _NAMES
        if (lost := _loss_of(descriptor))
    )


def intact() -> TextIO | None:
    """Returns standard error, or else standard output, whichever was not lost; None if both were."""
    return next(
        (getattr(sys, _NAMES[descriptor]) for descriptor in (2, 1) if not _loss_of(descriptor)),
        None,
    )


def raw_file(descriptor: int) -> UnfailingFile | None:
    """Returns the file below standard output (1) or error (2); None without `make_unfailing`."""
    buffer = getattr(getattr(sys, _NAMES[descriptor]), "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    return raw if isinstance(raw, UnfailingFile) else None


def _loss_of(descriptor: int) -> OSError | None:
    raw = raw_file(descriptor)
    return raw.lost if raw else None
