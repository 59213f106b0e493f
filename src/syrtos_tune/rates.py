"""The learning rates that a range test recommends: a pure function of rates and losses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_WEIGHT = 0.9  # of an exponential mean: over about ten batches
# Losses above this multiple of the first ones count no more: the last batch before the end may have
# any loss.
_CUT = 1.25
# A fall of less than this part of the loss, or of less than this many standard errors, counts as
# none.
_FLAT, _ERRORS = 0.02, 5.0
_FIRST = 5  # batches that say where the loss began
# The recommended rate is between these parts of the rate at the least loss.
_LOW, _HIGH = 1 / 10, 1 / 3
_LITTLE = 0.25  # of the loss: a fall by less says little about rates
_RISEN = 0.1  # of the fall: a loss that has risen by this part is no longer stable


@dataclasses.dataclass(frozen=True)
class Rates:
    """The result of a range test.

    Attributes:
        smoothed: the smoothed loss at each rate.
        recommended: a rate; None if none can be recommended.
        reason: the reason for it, or why there is none, as sentences.
        steepest: the rate at which the loss fell fastest.
        least: the rate with the least loss.
        stable: the highest rate before the loss rose again.
        diverged: whether the test ended because the loss rose.
    """

    smoothed: tuple[float, ...]
    recommended: float | None
    reason: str
    steepest: float | None = None
    least: float | None = None
    stable: float | None = None
    diverged: bool = False

    @property
    def fall(self) -> tuple[float, float]:
        """The highest smoothed loss before the least one, and the least one."""
        best = min(range(len(self.smoothed)), key=self.smoothed.__getitem__)
        return max(self.smoothed[: best + 1]), self.smoothed[best]

    @property
    def is_little(self) -> bool:
        """Returns whether the loss fell by so little that a recommendation is rough."""
        high, low = self.fall
        return high - low < _LITTLE * abs(high)

    @property
    def tenth(self) -> float | None:
        """The rate with the least loss, divided by 10."""
        return self.least and self.least / 10


def smooth(losses: Sequence[float]) -> list[float]:
    """Returns the exponential mean, without the bias from its beginning at 0.

    Source: Kingma & Ba 2014, arXiv:1412.6980, section 3.
    """
    mean, norm, found = 0.0, 0.0, []
    for loss in losses:
        mean, norm = _WEIGHT * mean + (1 - _WEIGHT) * loss, _WEIGHT * norm + (1 - _WEIGHT)
        found.append(mean / norm)
    return found


def conclude(rates: Sequence[float], losses: Sequence[float], steps: int) -> Rates:
    """Returns the rates to learn with.

    Args:
        rates: the rates of the batches, rising by the same factor.
        losses: the losses of the batches; the last may be infinite or NaN.
        steps: the number of batches that were asked for; fewer mean that the loss diverged, or that
            the data ended.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    diverged = len(finite) < len(losses) or len(losses) < steps
    if len(finite) < 2 * _FIRST:
        return Rates(
            tuple(finite),
            None,
            f"The test ended after {len(losses)} batches, which are too few. Begin with a lower"
            " `--from`.",
            diverged=diverged,
        )
    start = float(np.median(finite[:_FIRST]))
    # In both directions: an exponential mean in one direction lags, and every rate would be read
    # too high.
    curve = _both_ways(np.minimum(finite, start + (_CUT - 1) * abs(start)))
    best = int(np.argmin(curve))
    smoothed = tuple(float(loss) for loss in curve)
    if why := _flat(np.asarray(finite), curve, best, rates, diverged):
        return Rates(smoothed, None, why, diverged=diverged)
    logs = np.log(np.asarray(rates[: len(curve)]))
    steepest = int(np.argmin(np.gradient(curve, logs)[: best + 1]))
    recommended, reason = _recommend(rates[steepest], rates[best])
    if best == len(curve) - 1 and not diverged:
        reason += (
            f" The loss still fell at the highest rate, {rates[best]:.3g}: raise `--to` to see"
            " where it stops."
        )
    return Rates(
        smoothed,
        recommended,
        reason,
        rates[steepest],
        rates[best],
        rates[_stable(curve, best)],
        diverged,
    )


def _both_ways(losses: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the mean of the exponential means in both directions.

    Each direction counts by the weight of the batches behind it, which are few at the ends.
    """
    there, back = (
        np.asarray(smooth(losses.tolist())),
        np.asarray(smooth(losses[::-1].tolist())[::-1]),
    )
    counts = 1 - _WEIGHT ** np.arange(1, len(losses) + 1)
    return (there * counts + back * counts[::-1]) / (counts + counts[::-1])


def _flat(
    losses: npt.NDArray[np.float64],
    curve: npt.NDArray[np.float64],
    best: int,
    rates: Sequence[float],
    diverged: bool,
) -> str:
    """Returns the reason why no rate can be recommended if the loss did not fall; else empty."""
    calm = losses[: max(best, 2 * _FIRST)]
    noise = float(np.std(np.diff(calm))) / math.sqrt(2)
    error = noise * math.sqrt((1 - _WEIGHT) / (1 + _WEIGHT))
    fall = float(np.max(curve[: best + 1]) - curve[best])
    if fall > max(_FLAT * abs(float(curve[0])), _ERRORS * error):
        return ""
    if diverged:
        return (
            f"The loss only rose: the lowest rate, {rates[0]:.3g}, may be too high already. Begin"
            " with a lower `--from`."
        )
    return (
        f"The loss is flat: between the rates {rates[0]:.3g} and {rates[len(losses) - 1]:.3g} it"
        f" fell by {max(fall, 0):.2g}; batches differ by {noise:.2g}. No rate can be recommended."
        " Take more `--steps` or a higher `--to`; if that does not help, look whether the model"
        " can learn from this data at all."
    )


def _recommend(steepest: float, least: float) -> tuple[float, str]:
    if steepest > _HIGH * least:
        return (
            _HIGH * least,
            (
                f"A third of the rate with the least loss: the loss fell fastest at {steepest:.3g},"
                " too near to the rate at which it stopped falling."
            ),
        )
    if steepest < _LOW * least:
        return (
            _LOW * least,
            (
                f"A tenth of the rate with the least loss: the loss fell fastest at {steepest:.3g},"
                " far below, where a longer training would be slow."
            ),
        )
    return (
        steepest,
        (
            f"The loss fell fastest there, and it is {least / steepest:.1f} times below the rate"
            " with the least loss."
        ),
    )


def _stable(curve: npt.NDArray[np.float64], best: int) -> int:
    """Returns the index of the last rate before the loss had risen by a part of its fall."""
    limit = curve[best] + _RISEN * (np.max(curve[: best + 1]) - curve[best])
    above = np.flatnonzero(curve[best:] > limit)
    return best + (int(above[0]) - 1 if len(above) else len(curve) - best - 1)
