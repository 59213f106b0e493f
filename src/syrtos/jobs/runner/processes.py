"""The processes of a job, which are found by a mark in their environment.

By it, processes that a script has started are ended with their job.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from syrtos.launch.processes import leftovers

MARK = "SYRTOS_JOB"


def of(mark: str) -> list[int]:
    """Returns the ids of processes, except this one, whose environment has ``SYRTOS_JOB=mark``."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                # gone, or of another user
                continue
    return found


def end(mark: str, patience: float = 5.0) -> None:
    """Kills the processes with this mark until there are none.

    The shared memory that the processes have mapped is removed.

    Args:
        patience: gives up after this many seconds.
    """
    deadline = time.monotonic() + patience
    # again and again: a process may start another before it is killed
    while (left := of(mark)) and time.monotonic() < deadline:
        # first: once they are gone, nobody knows which segments they had
        leftovers.remove(path for pid in left for path in leftovers.mapped_segments(pid))
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
