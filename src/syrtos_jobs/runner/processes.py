"""The processes of a job, which are found by a mark in their environment, or by their parents.

By it, processes that a script has started are ended with their job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

from syrtos.launch.processes import leftovers

MARK = "SYRTOS_JOB"
_SET_ADOPTS, _ADOPTS = 36, 37  # PR_SET_CHILD_SUBREAPER and PR_GET_CHILD_SUBREAPER of prctl(2)


def adopt_orphans() -> None:
    """Makes this process the parent of processes below it whose own parent ends (prctl(2)).

    By that, `end` finds those that have dropped their environment.
    """
    ctypes.CDLL(None).prctl(_SET_ADOPTS, 1, 0, 0, 0)


def of(mark: str) -> list[int]:
    """Returns the ids of processes, except this one, whose environment has ``SYRTOS_JOB=mark``."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in _all():
        # gone, or of another user
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def end(mark: str = "", patience: float = 5.0) -> None:
    """Kills the processes with this mark until there are none; without a mark, those below alone.

    In a process that adopts orphans all processes below it are killed. The shared memory that the
    processes have mapped is removed.

    Args:
        patience: gives up after this many seconds.
    """
    deadline = time.monotonic() + patience
    # again and again: a process may start another before it is killed
    while (left := {*(of(mark) if mark else ()), *_below()}) and time.monotonic() < deadline:
        # first: once they are gone, nobody knows which segments they had
        leftovers.remove(path for pid in left for path in leftovers.mapped_segments(pid))
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _all() -> list[int]:
    return [
        int(folder)
        for folder in os.listdir("/proc")
        if folder.isdigit() and int(folder) != os.getpid()
    ]


def _below() -> list[int]:
    """Returns the ids of the living processes below this one; none unless it adopts orphans."""
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(_ADOPTS, ctypes.byref(adopts), 0, 0, 0)
    if not adopts.value:
        return []
    facts = {pid: _life_and_parent(pid) for pid in _all()}
    found = {os.getpid()}
    while more := {pid for pid, (_, parent) in facts.items() if parent in found} - found:
        found |= more
    return [pid for pid in found - {os.getpid()} if facts[pid][0]]


def _life_and_parent(pid: int) -> tuple[bool, int]:
    """Returns whether a process lives, and its parent's id; 0 if it is gone."""
    try:
        # after the name, which may hold anything (proc(5))
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return False, 0
    # one whose first thread has ended has the state of a zombie, and may have others: until all of
    # them have ended, what is below it stays there
    return fields[0] not in "ZX" or int(fields[17]) > 1, int(fields[1])
