"""The memory that this machine, or the container that this process is in, still has."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

_MEMINFO, _CGROUPS, _OWN = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Where the kernel says nothing.
_UNKNOWN = 1 << 62
# Version 1 of cgroups has a number near the highest for memory without a limit.
_UNLIMITED = 1 << 60


@dataclasses.dataclass(frozen=True)
class MachineMemory:
    """The memory of this machine, or of the container that this process is in.

    Attributes:
        available: the bytes that processes can have without swapping.
        total: all bytes.
    """

    available: int
    total: int


def now(cgroups: Path = _CGROUPS, own: Path = _OWN, meminfo: Path = _MEMINFO) -> MachineMemory:
    """Returns the memory that is available at the moment.

    It is the least of what the machine has (proc(5)) and what is left within the limits of this
    process's control groups (cgroups(7), versions 1 and 2), and of the groups around them.
    """
    limits = [_machine(meminfo), *_limits(cgroups, own)]
    return MachineMemory(min(each.available for each in limits), min(each.total for each in limits))


def _machine(meminfo: Path) -> MachineMemory:
    facts: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            facts[name] = int(value.split()[0]) << 10
    return MachineMemory(facts.get("MemAvailable", _UNKNOWN), facts.get("MemTotal", _UNKNOWN))


def _limits(cgroups: Path, own: Path) -> Iterator[MachineMemory]:
    """Yields the memory within the limits of the control groups."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, place in lines:
        if controllers == "":
            yield from _limits_along(
                cgroups, place, "memory.max", "memory.current", "inactive_file"
            )
        elif "memory" in controllers.split(","):
            yield from _limits_along(
                cgroups / "memory",
                place,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )


def _limits_along(
    root: Path, place: str, limit: str, usage: str, cache: str
) -> Iterator[MachineMemory]:
    folder = root / place.lstrip("/")
    for each in [folder, *folder.parents]:
        if not each.is_relative_to(root):
            return
        if (most := _number(each / limit)) is not None and most < _UNLIMITED:
            # The kernel drops cached files before it kills a process: they count as free.
            free = most - (_number(each / usage) or 0) + _in_cache(each / "memory.stat", cache)
            yield MachineMemory(max(free, 0), most)


def _number(path: Path) -> int | None:
    """Returns the number in a file; None if the file holds "max" or does not exist."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _in_cache(path: Path, name: str) -> int:
    """Returns the bytes of cached files, which count as used."""
    try:
        facts = dict(line.split(" ", 1) for line in path.read_text().splitlines())
        return int(facts.get(name, 0))
    except (OSError, ValueError):
        return 0
