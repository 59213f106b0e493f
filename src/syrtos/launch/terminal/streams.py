"""Standard output and error whose loss costs a process nothing.

Their reader may end, their disk may be full, and they may be closed: what can't be written is
dropped, and the process goes on. It also goes on while nobody takes what it has written (a terminal
that Ctrl-S holds, a pager).
"""

from __future__ import annotations

import collections
import contextlib
import errno
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO

_NAMES = {1: "stdout", 2: "stderr"}
_WORDS = {1: "standard output", 2: "standard error"}
# Bytes that wait for a reader, at most: the rest is in the logs of a run.
_MOST = 64 << 20
# Seconds that they wait after an error.
_PATIENCE = 2.0


class UnfailingFile(io.FileIO):
    """A descriptor to which writing never fails.

    Attributes:
        lost: the first error of a write; None as long as all was written.
        before_write: gets the data of each write before it is made; None: nobody wants it.
        queue: makes the writes in a thread of its own; None: they are made at once.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.lost: OSError | None = None
        self.before_write: Callable[[memoryview], None] | None = None
        self.queue: WriteQueue | None = None

    def write(self, data: Any, /) -> int:
        """Writes all of ``data``, or drops what can't be written; returns its length."""
        view = memoryview(data).cast("B")
        if self.queue:
            self.queue.put(self, bytes(view))
        else:
            self.write_now(view)
        return len(view)

    def write_now(self, data: memoryview) -> None:
        """Writes all of ``data``, or drops what can't be written; waits for its reader."""
        if self.before_write:
            self.before_write(data)
        left = data
        try:
            while left:
                written = super().write(left)
                if written is None:  # a pipe that does not wait (O_NONBLOCK) is full
                    _await_room(self.fileno())
                left = left[written or 0 :]
        except OSError as error:
            self.lost = self.lost or error


class WriteQueue:
    """Writes that a thread makes in their order, and that wait in memory while nobody takes them.

    Attributes:
        patience: seconds that `end` waits for them; None: until they are made.
        is_over: whether what follows is dropped.
    """

    def __init__(self) -> None:
        self.patience: float | None = None
        self.is_over = False
        self._pending = collections.deque[tuple[UnfailingFile, bytes]]()
        self._held = 0  # bytes
        self._ended = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="syrtos-terminal", daemon=True).start()

    def put(self, file: UnfailingFile, data: bytes) -> None:
        """Lets ``data`` be written; drops it where too much waits, or the queue is over."""
        with self._changed:
            if self.is_over or self._held + len(data) > _MOST:
                file.lost = file.lost or _not_taken()
                return
            self._pending.append((file, data))
            self._held += len(data)
            self._changed.notify_all()

    def end(self) -> None:
        """Waits for the writes; those that are not made until its patience ends are dropped.

        So is all that follows then.
        """
        if self._ended:
            return
        is_written = False
        try:
            with self._changed:
                is_written = self._changed.wait_for(lambda: not self._pending, self.patience)
        finally:
            with self._changed:
                self.is_over, self._ended = not is_written, True
                for file, _ in self._pending:
                    file.lost = file.lost or _not_taken()
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._ended)
                if self._ended:
                    return
                file, data = self._pending[0]
            with contextlib.suppress(ValueError):  # it was closed
                file.write_now(memoryview(data))
            with self._changed:
                self._pending.popleft()
                self._held -= len(data)
                self._changed.notify_all()


def _end(file: UnfailingFile) -> None:
    """Ends the queue of a file, which is written at once from then on, or never."""
    if file.queue:
        file.queue.end()
        if not file.queue.is_over:
            file.queue = None


def _not_taken() -> OSError:
    return OSError(errno.EAGAIN, "nobody has taken what was printed")


@contextlib.contextmanager
def in_background() -> Iterator[list[WriteQueue]]:
    """Context manager: writes of this process to its unfailing streams wait for no reader.

    At its end they are waited for, as long as the queues that it gives have patience; where that
    ends first, what follows is dropped too.
    """
    files = [file for descriptor in _NAMES if (file := raw_file(descriptor)) and not file.queue]
    # one for both on a terminal, which shows lines in the order in which they were printed
    queues = collections.defaultdict[tuple[int, int], WriteQueue](WriteQueue)
    for file in files:
        status = os.fstat(file.fileno())
        file.queue = queues[status.st_dev, status.st_ino]
    try:
        yield [*queues.values()]
    except BaseException:
        for queue in queues.values():
            queue.patience = _PATIENCE
        raise
    finally:
        flush()
        # an interrupt ends the wait for one of them
        with contextlib.ExitStack() as ending:
            for file in files:
                ending.callback(_end, file)


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
