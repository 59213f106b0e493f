"""A forecast of the memory that a trial will need, and whether this machine has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from syrtos.observe.memory import MachineMemory

# No trial begins that needs more than this part of what is available; one is ended when less than
# this part of the whole is left.
_USABLE, _LEAST_LEFT = 0.9, 0.03


def usable(has: MachineMemory) -> int:
    """Returns the bytes that a trial may need.

    The rest is kept for forecasts that are too low, and for other processes.
    """
    return int(_USABLE * has.available)


def is_short(has: MachineMemory) -> bool:
    """Returns whether so little memory is left that the kernel may soon swap or kill."""
    return has.available < _LEAST_LEFT * has.total


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


def forecast(points: Sequence[TrialMemory], batch: int) -> int:
    """Returns the bytes that a trial with a larger ``batch`` will need.

    The forecast lies on the line through the two largest batches.
    """
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
