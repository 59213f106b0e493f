"""Folders that the script makes.

The worker that comes first makes a folder, and for the others it counts as made.

All workers run `if not os.path.exists(folder): os.makedirs(folder)` at about the same time, and all
but one would fail.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from syrtos.launch.worker import tracebacks

# Seconds within which a worker that has made a folder says so.
_SAYS_SO = 1.0
_PYTHONS = {function.__code__.co_filename for function in (os.makedirs, Path.mkdir)}


def install(notes: Path, is_rank_aware: Callable[[], bool]) -> None:
    """Replaces `os.mkdir`: it succeeds in the script's own code where another worker was first.

    `os.makedirs` and `Path.mkdir` call it too. It fails as in one process where the folder was
    there before the run, or where this worker makes it a second time; and in a script that has
    asked for its rank, which may tell its workers apart by who was first.

    Args:
        notes: a folder in which workers note what they have made; empty at the start of a run.
        is_rank_aware: whether the script has asked for its rank.
    """
    original: Callable[..., None] = os.mkdir
    made: set[str] = set()

    @functools.wraps(original)
    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("dir_fd") is not None or is_rank_aware() or not _by_script(sys._getframe(1)):
            original(path, *args, **kwargs)
            return
        place = os.path.realpath(os.fsdecode(path))
        note = notes / f"made-{hashlib.sha256(os.fsencode(place)).hexdigest()}"
        try:
            original(path, *args, **kwargs)
        except FileExistsError:
            if place in made or not _appears(place, note):
                raise
        else:
            # On a full disk the others fail, as they would without notes.
            with contextlib.suppress(OSError):
                notes.mkdir(parents=True, exist_ok=True)
                note.touch()
        made.add(place)

    os.mkdir = mkdir


def _by_script(frame: FrameType | None) -> bool:
    """Returns whether the script's own code makes the folder, and would fail.

    Libraries may use folders as locks.
    """
    while frame is not None and frame.f_code.co_filename in _PYTHONS:
        if frame.f_locals.get("exist_ok"):
            return False
        frame = frame.f_back
    return frame is not None and tracebacks.is_of_script(frame.f_code.co_filename)


def _appears(place: str, note: Path) -> bool:
    """Returns whether another worker has noted making the folder; waits a moment for the note."""
    deadline = time.monotonic() + _SAYS_SO
    while not note.exists():
        # A folder that is older than a moment was noted at once, or never.
        if time.monotonic() > deadline or time.time() - os.stat(place).st_ctime > 2 * _SAYS_SO:
            return False
        time.sleep(0.01)
    return True
