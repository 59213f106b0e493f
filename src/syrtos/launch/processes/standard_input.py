"""Standard input for all workers of this machine.

Each worker gets the same bytes, as the same script must read the same on each. The launcher opens a
pipe for each rank, which the worker opens by its path under /proc; a file is opened by each worker
itself.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import stat
import termios
import threading
from collections.abc import Iterator, Sequence

_CHUNK = 1 << 16
_AHEAD = 1 << 20  # bytes that are read before any worker wants them


def input_descriptor() -> int | None:
    """Returns the descriptor of a pipe, socket or file that this process is to read.

    Returns None for a terminal, /dev/null or nothing.
    """
    try:
        facts = os.fstat(0)
    except OSError:
        return None
    null = stat.S_ISCHR(facts.st_mode) and facts.st_rdev == os.stat(os.devnull).st_rdev
    return None if null or os.isatty(0) else 0


def has_data(source: int) -> bool:
    """Returns whether there is something to read now: a non-empty file, or data in a pipe."""
    facts = os.fstat(source)
    if stat.S_ISREG(facts.st_mode):
        return facts.st_size > os.lseek(source, 0, os.SEEK_CUR)
    held = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(source, termios.FIONREAD, held)
    return held[0] > 0


def is_pipe_with_data(source: int) -> bool:
    """Returns whether there is something to read, and only once, as the data in a pipe."""
    return not stat.S_ISREG(os.fstat(source).st_mode) and has_data(source)


@contextlib.contextmanager
def copying_input(source: int | None, ranks: int) -> Iterator[str]:
    """Context manager: gives each of ``ranks`` workers the content of ``source`` as standard input.

    It yields a text, with which the worker calls `adopt`.
    """
    if source is None:
        yield ""
        return
    if stat.S_ISREG(os.fstat(source).st_mode):
        yield f"{os.lseek(source, 0, os.SEEK_CUR)} {_path(source)}"
        return
    pipes = [os.pipe() for _ in range(ranks)]
    _Copies(source, [write for _, write in pipes])
    try:
        yield " ".join(["0", *(_path(read) for read, _ in pipes)])
    finally:
        for read, _ in pipes:
            os.close(read)


def adopt(text: str, rank: int) -> None:
    """Makes this rank's copy of `copying_input` the standard input of this process.

    The standard input is empty if there is no copy.
    """
    offset, *paths = text.split() if text else ("0", os.devnull)
    descriptor = os.open(paths[rank % len(paths)], os.O_RDONLY)
    if offset != "0":
        os.lseek(descriptor, int(offset), os.SEEK_SET)
    os.dup2(descriptor, 0)
    os.close(descriptor)


def _path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"


class _Copies:
    """A thread that copies a stream to several pipes, each as fast as it is read."""

    def __init__(self, source: int, targets: Sequence[int]) -> None:
        self._source = source
        # What not all have read yet is in memory, not on disk: it may be a password.
        self._held = bytearray()
        self._start = 0  # of what is held
        self._over = False
        # only targets that still read have a position
        self._positions = dict.fromkeys(range(len(targets)), 0)
        self._change = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        for rank, target in enumerate(targets):
            threading.Thread(target=self._write, args=(rank, target), daemon=True).start()

    @property
    def _size(self) -> int:
        return self._start + len(self._held)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._source, _CHUNK):
                with self._change:
                    self._held += data
                    self._change.notify_all()
                    self._change.wait_for(
                        lambda: max(self._positions.values(), default=0) + _AHEAD > self._size
                    )
        with self._change:
            self._over = True
            self._change.notify_all()

    def _write(self, rank: int, target: int) -> None:
        # The worker that reads may be gone.
        with contextlib.suppress(OSError):
            while data := self._next_chunk(rank):
                while data:
                    data = data[os.write(target, data) :]
        os.close(target)
        with self._change:
            del self._positions[rank]
            self._forget()
            self._change.notify_all()

    def _next_chunk(self, rank: int) -> bytes:
        with self._change:
            self._change.wait_for(lambda: self._size > self._positions[rank] or self._over)
            begin = self._positions[rank] - self._start
            data = bytes(self._held[begin : begin + _CHUNK])
            self._positions[rank] += len(data)
            self._forget()
            self._change.notify_all()
            return data

    def _forget(self) -> None:
        """Drops the data that all have read."""
        read = min(self._positions.values(), default=self._size) - self._start
        del self._held[:read]
        self._start += read
