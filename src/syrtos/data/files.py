"""Files of a data set on this host, which can be read at any place."""

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

_WINDOW = 64 << 20  # bytes
_MAPPED = 256  # files; each holds a descriptor, of which a process has 1024 by default
_TRIES = 20
Result = TypeVar("Result")


class File(abc.ABC):
    """A file of a data set that can be read at any place.

    Attributes:
        name: its path or URL.
        size: its bytes; 0 if it is missing.
        version: a text that changes when the contents do; ``"missing"`` if there is no file.
    """

    name: str
    size: int
    version: str

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes of a range.

        Raises:
            DataError: the file can't be read, or is shorter.
        """

    def windows(self, size: int = _WINDOW) -> Iterator[tuple[int, bytes]]:
        """Yields the whole file in pieces: where each begins, and its bytes."""
        for start in range(0, self.size, size):
            yield start, self.read(start, min(start + size, self.size))

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: B027
        """Makes these ranges quick to read soon; does nothing for files that already are."""

    def forget(self, start: int, stop: int) -> bool:
        """Drops copies of a damaged range, once; returns whether reading it again may help."""
        return False


class LocalFile(File):
    """A file on this host, mapped into memory."""

    def __init__(self, path: str | Path) -> None:
        self._path = self.name = str(path)
        try:
            facts = os.stat(self._path)
        except OSError as error:
            raise DataError(
                f"{self._path} can't be read: {error.strerror}. Check the path."
            ) from error
        self.size = facts.st_size
        self.version = f"{facts.st_size} {facts.st_mtime_ns}"

    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes of a range; see `File.read`."""
        try:
            found = _map_file(self._path, self.version)[start:stop]
        except OSError as error:
            if is_of_this_host(error):
                raise  # not a DataError: those may be left out as bad records
            raise DataError(f"{self.name} can't be read: {error.strerror}.") from error
        # a slice of a mapping that ends early is only shorter
        if len(found) < stop - start:
            raise DataError(
                f"{self.name} ends at byte {self.size}, and was asked for bytes {start} to {stop}:"
                " it is truncated."
            )
        return found


class CachedFile(File):
    """A file of the cache, which is made again if others needed its room."""

    def __init__(self, made: Callable[[], Path], name: str, version: str) -> None:
        """Finds the file.

        Args:
            made: returns the path of the file of the cache, and makes it if it is gone.
            name: the name of the file that it is a copy of.
            version: the version of that file.
        """
        self._made = made
        self.name, self.version = name, version
        from_cache(self._find)

    def _find(self) -> None:
        """Asks for the file, and notes its path, size and inode number."""
        # a file that was made again has another inode number: that of the old file is taken while
        # it is mapped (it may be removed between these two lines: callers go through `from_cache`)
        self._path = self._made()
        facts = self._path.stat()
        self.size, self._number = facts.st_size, str(facts.st_ino)

    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes of a range; see `File.read`."""

        def read_again() -> bytes:
            self._find()
            return _map_file(str(self._path), self._number)[start:stop]

        with contextlib.suppress(FileNotFoundError):
            return _map_file(str(self._path), self._number)[start:stop]
        return from_cache(read_again)


def from_cache(use: Callable[[], Result]) -> Result:
    """Returns the result of ``use``, which asks for a file of the cache and opens it.

    Calls ``use`` again if the file was removed in between, because others needed its room.

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
            f"{error.filename}, a file of the cache, was made {_TRIES} times and was gone each time"
            " when it was to be read. Either another program removes files of the cache, or it is"
            " too small for all that use it: set SYRTOS_CACHE to another folder, or"
            " SYRTOS_CACHE_BYTES to more bytes."
        ) from error


def is_of_this_host(error: OSError) -> bool:
    """Returns whether an error is one of the host, and says nothing about the file that was read.

    Such errors are a lack of memory, descriptors or disk space, and a file system that can't be
    written.
    """
    return error.errno in (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
    )


@functools.lru_cache(maxsize=_MAPPED)
def _map_file(path: str, version: str) -> mmap.mmap | bytes:
    """Returns a file's bytes, mapped into memory; the files that were used last stay mapped."""
    # by the version too: a file that was replaced is mapped anew. mmap(2) takes no empty file
    with open(path, "rb") as file:
        return (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if os.fstat(file.fileno()).st_size
            else b""
        )


class MissingFile(File):
    """A file that was named and does not exist."""

    def __init__(self, name: str) -> None:
        self.name, self.size, self.version = name, 0, "missing"

    def read(self, start: int, stop: int) -> bytes:
        """Raises DataError, because there is nothing to read."""
        raise DataError(f"{self.name} is missing.")
