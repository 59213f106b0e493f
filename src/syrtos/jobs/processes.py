"""The processes of a job, found by a mark in their environment: processes that a script has started end with its job."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from syrtos.launch import leftovers

MARK = "SYRTOS_JOB"


def of(mark: str) -> list[int]:
    """Processes whose environment has ``SYRTOS_JOB=mark``, but for this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # gone, or of another user
                continue
    return found


def end(mark: str, patience: float = 5.0) -> None:
    """Kills them, until there are none; their shared memory goes with them."""
    deadline = time.monotonic() + patience
    while (left := of(mark)) and time.monotonic() < deadline:
        leftovers.remove(path for pid in left for path in leftovers.mapped(pid))
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
