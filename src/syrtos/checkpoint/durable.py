"""Writes that are on disk when a host loses power.

They use fsync(2) for files and for the entries of folders.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def force(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on disk."""
    # read-only: a folder can't be opened otherwise, and fsync(2) does not ask for more
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file, and waits until it is on disk; a new one gets the mode, less the umask."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
    force(path)


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file that appears whole, in the place of one that may be there.

    ``mode`` are its permissions, less the umask.
    """
    # a rename puts it there whole: who reads at that moment gets the old file or the new one
    # of this call alone: another process or host may replace the same file
    draft = path.with_suffix(f".{os.urandom(4).hex()}.partial")
    try:
        write(draft, data, mode)
        draft.replace(path)
    except OSError:
        # half a file would take the room that the next one needs
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
