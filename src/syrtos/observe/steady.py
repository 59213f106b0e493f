"""Moments in seconds since the epoch, by a clock that no one sets.

A run is measured from several processes: a clock that is set meanwhile, by a person or as a virtual
machine wakes up, would make durations of it that last a day, or less than nothing.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from pathlib import Path

from syrtos import settings


def now() -> float:
    """Returns this moment.

    All processes of a run on one machine agree on it. It is the wall clock's when the run began,
    and goes on from there by the monotonic clock.
    """
    return _offset() + time.monotonic()


def variables() -> dict[str, str]:
    """Returns the variable by which processes that this one starts agree with it on moments."""
    return {settings.MOMENT_VARIABLE: f"{_boot()} {_offset()!r}"}


@functools.cache
def _offset() -> float:
    """Returns the moment at which the monotonic clock was 0."""
    known = offset_from(settings.environment())
    return time.time() - time.monotonic() if known is None else known


def offset_from(env: Mapping[str, str]) -> float | None:
    """Returns the offset that `variables` has given; None if there is none, or of another machine.

    The monotonic clock of another machine, or before its last start, had another beginning.
    """
    boot, _, offset = env.get(settings.MOMENT_VARIABLE, "").partition(" ")
    return float(offset) if offset and boot == _boot() else None


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
