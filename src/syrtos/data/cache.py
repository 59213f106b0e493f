"""A bounded folder of files that can be remade: pieces of remote objects, unpacked files, indexes.

The workers of a host share it. A file appears complete or not at all. One process makes a file
while the others wait. The files that were not used for longest are removed first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from syrtos import settings
from syrtos.errors import ConfigurationError

# Files of a kind are made from files of kinds further down: an index of an unpacked file, of
# pieces.
Kind = Literal["index", "unpacked", "piece"]

_DEFAULT_BYTES = 20 << 30
# Part of the bound that is freed at a time, so that the folder is not gone through for every file.
_FREED = 0.1
_COUNT_EVERY = (
    60.0  # seconds: other processes add files too, and each knows only its own until it counts
)


class Cache:
    """A folder of files, which are found by their names.

    Args:
        folder: the folder, made when it is first needed.
        limit: the most bytes of all files together.
    """

    def __init__(self, folder: Path, limit: int = _DEFAULT_BYTES) -> None:
        self._folder = folder.absolute()  # the script may change its working directory
        self._limit = limit
        self._threads = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._size = 0
        self._counted_at = -_COUNT_EVERY

    def file(self, kind: Kind, name: str, make: Callable[[Path], None]) -> Path:
        """Returns the path of the file of this name, and makes it first if there is none.

        Another process may remove the file before it is opened, to make room: then the caller asks
        for it again.

        Args:
            kind: the kind of file.
            name: the name, unique for its kind.
            make: writes the file to the path that it is given. It may ask for files of kinds
                further down in `Kind` only, so that no two processes wait for each other.

        Raises:
            Exception: the error of ``make``; the file then still does not exist.
        """
        digest = hashlib.sha256(f"{kind} {name}".encode()).hexdigest()
        path = self._folder / digest[:2] / digest
        if _touch(path):
            return path
        with self._threads:
            mine = self._making.setdefault(digest, threading.Lock())
        try:
            with mine, self._file_lock(kind, digest):
                if not _touch(path):  # another process has made it while this one waited
                    self._make(path, make)
        finally:
            with self._threads:
                self._making.pop(digest, None)
        return path

    def drop(self, kind: Kind, name: str) -> None:
        """Removes a file that was found to be damaged."""
        digest = hashlib.sha256(f"{kind} {name}".encode()).hexdigest()
        (self._folder / digest[:2] / digest).unlink(missing_ok=True)

    def _make(self, path: Path, make: Callable[[Path], None]) -> None:
        descriptor, name = tempfile.mkstemp(prefix=".", dir=_make_folder(path.parent))
        os.close(descriptor)
        temporary = Path(name)
        try:
            make(temporary)
            with temporary.open("rb+") as file:
                os.fsync(
                    file.fileno()
                )  # a host that crashes leaves no empty file under the final name
            size = temporary.stat().st_size
            self._make_room(size)
            # under its name it is complete from the first moment: readers take no lock
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _file_lock(self, kind: Kind, digest: str) -> Iterator[None]:
        """Context manager: locks files of the cache, so that no other process makes them meanwhile.

        They are the files of this ``kind`` whose digests have the same start as ``digest``.
        """
        # a lock file for each file of the cache would never be removed, so files whose digests
        # begin alike share one
        path = _make_folder(self._folder / "locks" / kind) / digest[:3]
        with path.open("a") as file:
            # the kernel drops the lock when its owner dies, so nobody waits for a killed process
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_room(self, size: int) -> None:
        with self._threads:
            self._size += size
            due = self._size > self._limit or time.monotonic() - self._counted_at > _COUNT_EVERY
            if not due:
                return
            files = sorted(self._files(), key=lambda found: found[1])
            self._size = size + sum(found[2] for found in files)
            self._counted_at = time.monotonic()
            wanted = self._limit * (1 - _FREED) if self._size > self._limit else self._limit
            for path, _, bytes_ in files:
                if self._size <= wanted:
                    break
                path.unlink(missing_ok=True)  # processes that have it open go on reading
                self._size -= bytes_

    def _files(self) -> Iterator[tuple[Path, float, int]]:
        """Yields each file's path, time of last use, and bytes.

        Files left unfinished for more than an hour are removed.
        """
        for path in self._folder.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                if not path.name.startswith("."):
                    yield path, facts.st_mtime, facts.st_size
                elif time.time() - facts.st_mtime > 3600:
                    path.unlink()


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The cache {folder} can't be made: {error.strerror}. Set SYRTOS_CACHE to a folder that"
            " can be written."
        ) from error
    return folder


def _touch(path: Path) -> bool:
    """Returns whether the file is there, and notes that it was used."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def default() -> Cache:
    """Returns the cache of this host.

    It is in SYRTOS_CACHE (a folder) with at most SYRTOS_CACHE_BYTES; by default in
    ``~/.cache/syrtos`` with 20 GiB.
    """
    env = settings.environment()
    folder = Path(env.get("SYRTOS_CACHE") or Path.home() / ".cache" / "syrtos")
    limit = env.get("SYRTOS_CACHE_BYTES") or str(_DEFAULT_BYTES)
    if not limit.isdecimal():
        raise ConfigurationError(
            f"SYRTOS_CACHE_BYTES must be a whole number of bytes, e.g. {20 << 30}. Received:"
            f" {limit!r}."
        )
    return Cache(folder, int(limit))
