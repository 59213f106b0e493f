"""The memory that this machine still has, and a forecast of the memory that a trial will need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

_CGROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# No trial begins that needs more than this part of what is available; one is ended when less than
# this part of the whole is left.
_USABLE, _LEAST_LEFT = 0.9, 0.03


@dataclasses.dataclass(frozen=True)
class MachineMemory:
    """The memory of this machine, or of the container that this process is in.

    Attributes:
        available: the bytes that processes can have without swapping.
        total: all bytes.
    """

    available: int
    total: int

    @property
    def usable(self) -> int:
        """The bytes that a trial may need; the rest is kept for forecasts that are too low, and for other processes."""
        return int(_USABLE * self.available)

    @property
    def is_short(self) -> bool:
        """Returns whether so little memory is left that the kernel may soon swap or kill."""
        return self.available < _LEAST_LEFT * self.total


@dataclasses.dataclass(frozen=True)
class TrialMemory:
    """The memory of one trial, over all of its workers on this machine, in bytes.

    Attributes:
        batch: the rows of its global batches.
        before: the memory when `fit` began.
        peak: the most memory in `fit`.
    """

    batch: int
    before: int
    peak: int


def now(cgroups: Path = _CGROUPS, own: Path = _OWN) -> MachineMemory:
    """Returns the memory that is available at the moment.

    It is the least of what the machine has and what is left within the limits of this process's
    control groups (cgroups(7), versions 1 and 2).
    """
    machine = psutil.virtual_memory()
    limits = [MachineMemory(machine.available, machine.total), *_limits(cgroups, own)]
    return MachineMemory(min(each.available for each in limits), min(each.total for each in limits))


def _limits(cgroups: Path, own: Path) -> Iterator[MachineMemory]:
    """Yields the memory within the limits of this process's control groups, and of the groups around them."""
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
        # version 1 has no word for "no limit"
        if (most := _number(each / limit)) is not None and most < 2**60:
            free = most - (_number(each / usage) or 0) + _in_cache(each / "memory.stat", cache)
            yield MachineMemory(max(free, 0), most)


def _number(path: Path) -> int | None:
    """Returns the number in a file; None if the file holds "max" or does not exist."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _in_cache(path: Path, name: str) -> int:
    """Returns the bytes of cached files, which count as used and which the kernel gives up first."""
    try:
        facts = dict(line.split(" ", 1) for line in path.read_text().splitlines())
        return int(facts.get(name, 0))
    except (OSError, ValueError):
        return 0


def forecast(points: Sequence[TrialMemory], batch: int) -> int:
    """Returns the bytes that a trial with a larger ``batch`` will need, on the line through the two largest batches."""
    *others, last = sorted(points, key=lambda point: point.batch)
    # After one trial all memory that `fit` has added, even that of weights and compiled code, is
    # taken to grow with the batch: such a forecast is too high, never too low.
    if not others:
        return int(last.before + (last.peak - last.before) * batch / last.batch)
    slope = (last.peak - others[-1].peak) / (last.batch - others[-1].batch)
    return int(last.peak + max(slope, 0.0) * (batch - last.batch))


def size(count: float) -> str:
    """Returns a number of bytes in words."""
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
