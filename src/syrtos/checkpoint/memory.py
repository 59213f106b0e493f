"""The amount of memory that is free for snapshots.

Where snapshots would take what training needs, the kernel would kill it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_MEMINFO, _CGROUPS, _OWN = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available() -> int:
    """Returns the bytes that this process and others of its control group may still use without swapping.

    Source: proc(5); cgroups(7), version 2.
    """
    found = [_of_group(_CGROUPS / group.lstrip("/")) for group in _groups()]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(
            line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:")
        )
        found.append(int(line.split()[1]) << 10)
    return min((free for free in found if free is not None), default=1 << 62)


def _groups() -> list[str]:
    """Returns this process's group, and those around it."""
    with contextlib.suppress(OSError):
        for line in _OWN.read_text().splitlines():
            if line.startswith("0::"):
                own = Path(line.removeprefix("0::"))
                # each of them may have a limit, and the smallest counts
                return [str(group) for group in (own, *own.parents)]
    return []


def _of_group(folder: Path) -> int | None:
    """Returns the bytes that a group's limit leaves; None where there is no limit."""
    try:
        limit, used = (folder / "memory.max").read_text(), (folder / "memory.current").read_text()
        statistics = dict(
            line.split() for line in (folder / "memory.stat").read_text().splitlines()
        )
        # the kernel drops cached files before it kills a process: they count as free
        return int(limit) - int(used) + int(statistics["inactive_file"])
    except (OSError, ValueError, KeyError):  # no such group, or "max"
        return None
