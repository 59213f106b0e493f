"""Files of a data set on this host, read at any place."""

from __future__ import annotations

import abc
import contextlib
import errno
import functools
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from syrtos.errors import DataError

_WINDOW = 64 << 20
_MAPPED = 256
_TRIES = 20
Result = TypeVar("Result")


class File(abc.ABC):
    """One file.

    Attributes:
        name: its path or URL.
        size: bytes; None if it is missing.
        version: changes when the contents do.
    """

    name: str
    size: int
    version: str

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> bytes:
        """The bytes of a range.

        Raises:
            DataError: it can't be read, or is shorter.
        """

    def windows(self, size: int = _WINDOW) -> Iterator[tuple[int, bytes]]:
        """The whole file in pieces: where each begins, and its bytes."""
        for start in range(0, self.size, size):
            yield start, self.read(start, min(start + size, self.size))

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: B027
        """Makes these ranges quick to read soon. Here they are already."""

    def forget(self, start: int, stop: int) -> bool:
        """Drops copies of a range that turned out to be damaged, once; whether reading it again may help."""
        return False


class LocalFile(File):
    """A file on this host, mapped into memory."""

    def __init__(self, path: str | Path) -> None:
        self._path = self.name = str(path)
        try:
            facts = os.stat(self._path)
        except OSError as error:
            raise DataError(f"{self._path} can't be read: {error.strerror}. Check the path.") from error
        self.size = facts.st_size
        self.version = f"{facts.st_size} {facts.st_mtime_ns}"

    def read(self, start: int, stop: int) -> bytes:
        """See `File.read`."""
        try:
            found = _mapped(self._path, self.version)[start:stop]
        except OSError as error:
            if is_of_this_host(error):
                raise
            raise DataError(f"{self.name} can't be read: {error.strerror}.") from error
        if len(found) < stop - start:
            raise DataError(
                f"{self.name} ends at byte {self.size}, and was asked for bytes {start} to {stop}: it is truncated."
            )
        return found


class CachedFile(File):
    """A file of the cache, made again if others needed its room."""

    def __init__(self, made: Callable[[], Path], name: str, version: str) -> None:
        """``made`` gives its path; ``name`` and ``version`` are those of the file that this is a copy of."""
        self._made = made
        self.name, self.version = name, version
        from_cache(self._find)

    def _find(self) -> None:
        """A file that was made again has another number: as long as the old one is mapped, its number is taken."""
        self._path = self._made()
        facts = self._path.stat()
        self.size, self._number = facts.st_size, str(facts.st_ino)

    def read(self, start: int, stop: int) -> bytes:
        """See `File.read`."""

        def again() -> bytes:
            self._find()
            return _mapped(str(self._path), self._number)[start:stop]

        with contextlib.suppress(FileNotFoundError):
            return _mapped(str(self._path), self._number)[start:stop]
        return from_cache(again)


def from_cache(use: Callable[[], Result]) -> Result:
    """The result of ``use``, which asks for a file of the cache and opens it: again if others needed its room in between.

    Raises:
        DataError: the file was gone each time.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(FileNotFoundError):
            return use()
    try:
        return use()
    except FileNotFoundError as error:
        raise DataError(
            f"{error.filename}, a file of the cache, was made {_TRIES} times and was gone each time when it was to be read. Either another "
            "program removes files of the cache, or it is too small for all that use it: set SYRTOS_CACHE to another folder, or "
            "SYRTOS_CACHE_BYTES to more bytes."
        ) from error


def is_of_this_host(error: OSError) -> bool:
    """Whether an error says nothing about the file that was read: the host lacks memory, descriptors, or room for the cache."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@functools.lru_cache(maxsize=_MAPPED)
def _mapped(path: str, version: str) -> mmap.mmap | bytes:
    """A file's bytes; each that is mapped holds a descriptor, so only those used last are."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


class MissingFile(File):
    """A file that was named and is not there."""

    def __init__(self, name: str) -> None:
        self.name, self.size, self.version = name, 0, "missing"

    def read(self, start: int, stop: int) -> bytes:
        """Raises DataError."""
        raise DataError(f"{self.name} is missing.")
