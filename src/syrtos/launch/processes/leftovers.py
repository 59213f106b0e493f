"""Shared memory that killed workers would leave behind.

MPI names files in /dev/shm and removes them only when a job ends well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from syrtos.comm.world import Session

_FOLDER = Path("/dev/shm")
_PREFIX = "mpich_shm_"
# seconds in which a segment may have been made, and be about to be mapped
_YOUNG = 10.0


def unlink_early(session: Session) -> None:
    """Removes the names of segments once every worker has mapped them.

    The memory then goes with its last user.
    """
    session.comm.barrier()
    if session.world.local_rank == 0:
        remove(mapped_segments())
    session.comm.barrier()


def mapped_segments(pid: int | str = "self") -> list[str]:
    """Returns the paths of our MPI's segments that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {
        line.split(maxsplit=5)[5].removesuffix(" (deleted)")
        for line in lines
        if f"/{_PREFIX}" in line
    }
    return sorted(paths)


def find_unmapped() -> list[Path]:
    """Returns the segments that no process has mapped, and that are some seconds old at least.

    They are left of workers that were killed before they had removed the names.
    """
    named = [
        path for path in _FOLDER.glob(f"{_PREFIX}*") if time.time() - path.stat().st_mtime > _YOUNG
    ]
    used = (
        {path for process in Path("/proc").glob("[0-9]*") for path in mapped_segments(process.name)}
        if named
        else set[str]()
    )
    return [path for path in named if str(path) not in used]


def remove_of_world(name: str) -> None:
    """Removes the segments of a world whose processes have ended.

    Workers that were killed while MPI began, before `unlink_early`, have left them.

    Args:
        name: that of the world's PMI store. MPICH names its segments by it (5.0: ``MPL_shm`` writes
            its 32-bit FNV-1a hash in hexadecimal).
    """
    digest = 0x811C9DC5
    for byte in name.encode():
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    remove(map(str, _FOLDER.glob(f"{_PREFIX}{digest:x}_*")))


def remove(paths: Iterable[str]) -> None:
    """Removes segments by their paths; other paths are left alone."""
    for path in map(Path, paths):
        if path.parent == _FOLDER and path.name.startswith(_PREFIX) and path.is_file():
            path.unlink(missing_ok=True)
