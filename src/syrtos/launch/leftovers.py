"""Shared memory that killed workers leave behind: MPI names a file for each job and removes it when the job ends well."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path("/dev/shm")
_PREFIX = "mpich_shm_"


def mapped(pid: int | str = "self") -> list[str]:
    """The segments of our MPI that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5].removesuffix(" (deleted)") for line in lines if f"/{_PREFIX}" in line}
    return sorted(paths)


def remove(paths: Iterable[str]) -> None:
    """Removes segments of workers that are known to have ended."""
    for path in paths:
        if Path(path).parent == _FOLDER and Path(path).name.startswith(_PREFIX):
            Path(path).unlink(missing_ok=True)


def sweep(older_than: float = 60.0) -> None:
    """Removes this user's segments that no process has mapped any more; young ones may be about to be."""
    deadline = time.time() - older_than
    candidates = {str(p) for p in _FOLDER.glob(_PREFIX + "*") if _is_ours(p, deadline)}
    if candidates:
        in_use = {path for pid in os.listdir("/proc") if pid.isdigit() for path in mapped(pid)}
        remove(candidates - in_use)


def _is_ours(path: Path, deadline: float) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    return stat.st_uid == os.getuid() and stat.st_mtime < deadline
