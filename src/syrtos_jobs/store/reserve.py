"""Room on the service's disk for the record of a job that has filled it."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

_ROOM = 16 << 20  # bytes that are kept
_LOW = 4 << 20  # bytes: with fewer, a disk is full


class Reserve:
    """A file that reserves room on its disk, and is removed when the room is needed."""

    def __init__(self, path: Path) -> None:
        """Takes the path of the file."""
        self._path = path

    def keep(self) -> None:
        """Reserves the room (16 MiB) if it is not reserved yet and the disk has plenty."""
        if self._path.exists() or shutil.disk_usage(self._path.parent).free < 4 * _ROOM:
            return
        # a file system may not be able to, and another process may have been faster
        with self._path.open("wb") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, _ROOM)

    def is_needed(self) -> bool:
        """Returns whether the disk is full: it has less than 4 MiB left."""
        return shutil.disk_usage(self._path.parent).free < _LOW

    def release(self) -> None:
        """Gives the room free."""
        self._path.unlink(missing_ok=True)

    def outweighs(self, folder: Path) -> bool:
        """Returns whether the files of a folder, if there are any, take less room than this file."""
        sizes = [path.lstat().st_size for path in folder.rglob("*") if path.is_file()]
        return bool(sizes) and sum(sizes) < _ROOM
