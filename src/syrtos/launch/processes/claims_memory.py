"""A folder in memory for the files by which the workers of a run of this machine meet.

They are scratch, and no record: with them in the run directory, a full disk would end the training.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from syrtos.settings import CLAIMS_VARIABLE

_MEMORY = Path("/dev/shm")
_PREFIX = "syrtos-claims-"
# seconds in which a folder may have been made, and be about to be locked
_YOUNG = 10.0


@contextlib.contextmanager
def folder_in_memory(memory: Path = _MEMORY) -> Iterator[dict[str, str]]:
    """Context manager: makes the folder, and yields the variables by which workers find it.

    There are none where no memory can be had as a folder: workers meet in the run directory then.

    Args:
        memory: the file system in memory that the folder is made in.
    """
    _remove_stale(memory)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=memory))
        lock = os.open(folder, os.O_RDONLY)
    except OSError:
        yield {}
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield {CLAIMS_VARIABLE: str(folder)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_stale(memory: Path) -> None:
    """Removes the folders of launchers that were killed: the kernel has dropped their locks."""
    for folder in memory.glob(f"{_PREFIX}*"):
        # another user's, or removed just now, or locked
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if time.time() - os.fstat(descriptor).st_mtime > _YOUNG:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
