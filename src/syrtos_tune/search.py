"""The choice of the next batch to try: a pure function of the batches that were tried."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

# Two doublings that bring less than this end the growth; batches within this of the fastest are as
# good.
ALIKE = 0.05
# The largest batch that fits is found to this part.
_FINE = 1 / 8
# The fewest steps that an epoch has with the recommended batch.
MIN_STEPS = 10
# A batch is tried again if it is faster than its neighbours by this factor, or if its quartiles are
# apart by this part of the median.
_ALONE, _WIDE = 1.2, 0.2
# The smallest batch is looked for down to this many halvings below the script's own.
_HALVINGS = 3


@dataclasses.dataclass(frozen=True)
class BatchTrial:
    """A batch size, and the result of its trial.

    Attributes:
        batch: the rows of the global batch.
        seconds: the seconds of each step that was measured.
        before: the bytes in memory of each worker when `fit` began.
        peak: the most bytes in memory of each worker during `fit`.
        device: the most bytes on the accelerator of each worker; zeros without one.
        note: the difference between the trial's data and the script's, in words; empty for none.
        failed: the reason why nothing was measured, in words; empty if steps were measured.
        for_memory: whether that was for want of memory.
        runs: the number of trials that `seconds` has the steps of.
    """

    batch: int
    seconds: tuple[float, ...] = ()
    before: tuple[int, ...] = ()
    peak: tuple[int, ...] = ()
    device: tuple[int, ...] = ()
    note: str = ""
    failed: str = ""
    for_memory: bool = False
    runs: int = 1

    @property
    def step(self) -> float:
        """The median of the seconds of a step."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of the seconds of a step."""
        if len(self.seconds) < 2:
            return self.step, self.step
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return first, third

    @property
    def speed(self) -> float:
        """Samples per second."""
        return self.batch / self.step

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a part of the median."""
        first, third = self.quartiles
        return (third - first) / self.step

    def merge_with(self, again: BatchTrial) -> BatchTrial:
        """Returns both trials of this batch as one; the second alone if it failed."""
        if again.failed:
            return again
        return dataclasses.replace(
            self,
            seconds=self.seconds + again.seconds,
            peak=tuple(map(max, self.peak, again.peak)),
            device=tuple(map(max, self.device, again.device)),
            runs=self.runs + again.runs,
        )


def following(
    tried: Sequence[BatchTrial], own: int, each: int = 1, most: int | None = None
) -> int | None:
    """Returns the next batch to try; None if enough is known.

    Sizes are doubled until memory ends, two doublings bring nothing, or ``most`` is reached. Then
    sizes between the largest that fits and the smallest that does not are tried. Then sizes are
    halved while the smaller batch is as fast as the fastest.

    Args:
        tried: the trials, the first with the script's own size.
        own: the script's own global batch.
        each: sizes are multiples of it, e.g. of the number of workers.
        most: no size is larger.
    """
    good = {one.batch: one.speed for one in tried if not one.failed}
    bad = min((one.batch for one in tried if one.failed), default=None)
    if not good:
        return _unless_tried(_multiple(bad // 2, each), tried) if bad else None
    larger = _refined_batch(good, bad, tried, each) if bad else _larger_batch(good, each, most)
    return _unless_tried(larger, tried) or _unless_tried(_smaller(good, own, each), tried)


def _unless_tried(batch: int | None, tried: Sequence[BatchTrial]) -> int | None:
    return batch if batch and batch not in {one.batch for one in tried} else None


def _multiple(batch: int, each: int) -> int:
    return batch // each * each


def _larger_batch(good: dict[int, float], each: int, most: int | None) -> int | None:
    top = max(good)
    larger = _multiple(2 * top if most is None else min(2 * top, most), each)
    return larger if larger > top and not has_stalled(good) else None


def has_stalled(good: dict[int, float]) -> bool:
    """Returns whether the two largest batches are hardly faster than the smaller ones.

    They are then less than 5 % faster than the fastest of the smaller ones.

    Args:
        good: the speeds by batch; with fewer than three batches the answer is False.
    """
    *smaller, last, top = sorted(good) if len(good) > 2 else [0, 0]
    return bool(smaller) and max(good[last], good[top]) < (1 + ALIKE) * max(
        good[batch] for batch in smaller
    )


def _refined_batch(
    good: dict[int, float], bad: int, tried: Sequence[BatchTrial], each: int
) -> int | None:
    for_memory = next(one for one in tried if one.batch == bad).for_memory
    top = max(good)
    middle = _multiple((top + bad) // 2, each)
    return middle if for_memory and bad > top * (1 + _FINE) and top < middle < bad else None


def _smaller(good: dict[int, float], own: int, each: int) -> int | None:
    least = min(good)
    half = _multiple(least // 2, each)
    as_fast = good[least] >= (1 - ALIKE) * max(good.values())
    return half if as_fast and half and half * 2**_HALVINGS >= min(own, max(good)) else None


@dataclasses.dataclass(frozen=True)
class BatchRecommendation:
    """The result of a search, in rows of the global batch.

    Attributes:
        largest: the largest batch that fits.
        fastest: the batch with the most samples per second.
        recommended: the smallest batch that is within 5 % of the fastest, among those that leave 10
            steps in an epoch and those up to the script's own.
        capped: whether a larger one would be recommended if an epoch had more steps.
        why: the reason why no larger batch was tried, as a sentence.
    """

    largest: int
    fastest: int
    recommended: int
    capped: bool
    why: str


def conclude(
    tried: Sequence[BatchTrial], most: int | None, own: int = 0, rows: int = 0
) -> BatchRecommendation | None:
    """Returns the result of a search; None if no batch fits.

    Args:
        tried: the trials.
        most: no larger batch was to be tried.
        own: the script's own global batch.
        rows: the rows that an epoch trains on; 0 if unknown.
    """
    good = {one.batch: one.speed for one in tried if not one.failed}
    if not good:
        return None
    cap = max(rows // MIN_STEPS, own) if rows else max(good)
    best, recommended = (
        _smallest(good),
        _smallest({k: v for k, v in good.items() if k <= cap} or {min(good): 1.0}),
    )
    fastest = max(good, key=lambda batch: good[batch])
    return BatchRecommendation(
        max(good),
        fastest,
        recommended,
        recommended < best,
        _reason_for_end(tried, good, most, rows),
    )


def _smallest(good: dict[int, float]) -> int:
    """Returns the smallest batch within 5 % of the fastest."""
    return min(batch for batch, speed in good.items() if speed >= (1 - ALIKE) * max(good.values()))


def doubtful(tried: Sequence[BatchTrial], found: BatchRecommendation) -> int | None:
    """Returns a winner whose single trial is doubtful; None without one.

    Such a trial stands out from its neighbours or has wide quartiles.
    """
    good = sorted((one for one in tried if not one.failed), key=lambda one: one.batch)
    for at, one in enumerate(good):
        beside = [each.speed for each in good[max(at - 1, 0) : at + 2] if each is not one]
        stands_out = bool(beside) and one.speed > _ALONE * max(beside)
        if (
            one.batch in (found.recommended, found.fastest)
            and one.runs == 1
            and (stands_out or one.spread > _WIDE)
        ):
            return one.batch
    return None


def _reason_for_end(
    tried: Sequence[BatchTrial], good: dict[int, float], most: int | None, rows: int
) -> str:
    failed = min((one for one in tried if one.failed), key=lambda one: one.batch, default=None)
    if failed:
        return f"A batch of {failed.batch:,} did not work: it {failed.failed}."
    if most is not None and 2 * max(good) > most:
        return f"Larger ones were not tried, as `--most {most}` asks for."
    if rows and 2 * max(good) > rows:
        return f"Larger ones were not tried: an epoch trains on {rows:,} rows."
    return "Larger ones were not tried: two doublings brought less than 5 %."
