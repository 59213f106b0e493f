"""How much memory this machine still has, and how much a trial will need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

_CGROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# No trial begins that needs more than this part of what is available; one is ended when less than this part of the whole is left.
_USABLE, _LEAST_LEFT = 0.9, 0.03


@dataclasses.dataclass(frozen=True)
class Memory:
    """Of this machine, or of the container that this process is in.

    Attributes:
        available: bytes that processes can have without swapping.
        total: bytes.
    """

    available: int
    total: int

    @property
    def usable(self) -> int:
        """What a trial may need, in bytes: a part is left for forecasts that are too low, and for other processes."""
        return int(_USABLE * self.available)

    @property
    def is_short(self) -> bool:
        """Whether so little is left that the kernel may soon swap or kill."""
        return self.available < _LEAST_LEFT * self.total


@dataclasses.dataclass(frozen=True)
class Point:
    """The memory of one trial, over all of its workers on this machine, in bytes.

    Attributes:
        batch: rows of its global batches.
        before: when `fit` began.
        peak: the most in `fit`.
    """

    batch: int
    before: int
    peak: int


def now(cgroups: Path = _CGROUPS, own: Path = _OWN) -> Memory:
    """What is available at the moment: to the machine, and within the limits of the control groups of this process (cgroups(7), versions 1 and 2)."""
    machine = psutil.virtual_memory()
    limits = [Memory(machine.available, machine.total), *_limits(cgroups, own)]
    return Memory(min(each.available for each in limits), min(each.total for each in limits))


def _limits(cgroups: Path, own: Path) -> Iterator[Memory]:
    """Of this process's groups and those around them."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, place in lines:
        if controllers == "":
            yield from _along(cgroups, place, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _along(
                cgroups / "memory", place, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            )


def _along(root: Path, place: str, limit: str, usage: str, cache: str) -> Iterator[Memory]:
    folder = root / place.lstrip("/")
    for each in [folder, *folder.parents]:
        if not each.is_relative_to(root):
            return
        if (most := _number(each / limit)) is not None and most < 2**60:  # version 1 has no word for "no limit"
            free = most - (_number(each / usage) or 0) + _in_cache(each / "memory.stat", cache)
            yield Memory(max(free, 0), most)


def _number(path: Path) -> int | None:
    """Of a file that holds one number; None for "max", or where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _in_cache(path: Path, name: str) -> int:
    """Bytes of files that count as used, and that the kernel gives up first."""
    try:
        facts = dict(line.split(" ", 1) for line in path.read_text().splitlines())
        return int(facts.get(name, 0))
    except (OSError, ValueError):
        return 0


def forecast(points: Sequence[Point], batch: int) -> int:
    """Bytes that a trial with a larger ``batch`` will need: along the line through the two largest batches so far.

    After the first trial all that `fit` has added counts as growing with the batch, weights and compiled code too: that is too much, never too little.
    """
    *others, last = sorted(points, key=lambda point: point.batch)
    if not others:
        return int(last.before + (last.peak - last.before) * batch / last.batch)
    slope = (last.peak - others[-1].peak) / (last.batch - others[-1].batch)
    return int(last.peak + max(slope, 0.0) * (batch - last.batch))


def size(count: float) -> str:
    """Bytes in words."""
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
