"""The time of a run by kind, for the mean worker. The parts add up to the run's time.

The cost of a restart is a part of its own, "lost": steps that were computed again, the time until
the end of the workers was noticed, and all time of the next generation before its first step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from syrtos.observe.clock import KINDS
from syrtos.report.read import Generation, RunRecord, WorkerRecord
from syrtos.report.summary import SHARES, imported_before

PARTS = {
    **{kind: words for kind, words in SHARES.items() if kind != "rest"},
    "lost": "lost work",
    "rest": SHARES["rest"],
}
Seconds = dict[str, float]


def of_run(run: RunRecord) -> Seconds:
    """Returns the seconds of the mean worker, by part; they add up to those of the run."""
    total = dict.fromkeys(PARTS, 0.0)
    for generation, ranks in zip(run.generations, by_rank(run), strict=True):
        for seconds in ranks:
            for part, value in seconds.items():
                total[part] += value / len(ranks)
        if not ranks:
            total["lost" if generation is not run.generations[-1] else "start"] += (
                generation.seconds
            )
    return total


def by_rank(run: RunRecord) -> list[list[Seconds]]:
    """Returns the seconds of each worker of each generation, by part.

    A worker's parts add up to the seconds of its generation.
    """
    found = []
    for number, generation in enumerate(run.generations):
        is_last = generation is run.generations[-1]
        until = run.step_kept(number)
        kept = None if until is None else until - generation.trained_before
        found.append(
            [_of_rank(rank, generation, kept, number > 0, is_last) for rank in generation.ranks]
        )
    return found


def _of_rank(
    rank: WorkerRecord, generation: Generation, kept: int | None, is_restart: bool, is_last: bool
) -> Seconds:
    """Returns the seconds of one worker.

    Args:
        rank: the worker.
        generation: its generation.
        kept: the number of its steps that the next generation had in its snapshot; None if no later
            one trained.
        is_restart: whether workers had ended before it.
        is_last: whether no generation follows.
    """
    lines = rank.lines
    lost = lost_lines(rank, kept, is_restart)
    seconds = dict.fromkeys(PARTS, 0.0)
    evaluates = lines.evaluates
    scripts = lines.phase == "script"
    for kind, column in zip(KINDS, lines.seconds.T, strict=True):
        seconds[kind] += float(column[~lost & ~evaluates].sum())
    seconds["evaluation"] += float(lines.wall[~lost & evaluates].sum())
    seconds["lost"] += float(lines.wall[lost].sum())
    seconds["script"] = float(lines.of("rest")[~lost & scripts].sum())
    seconds["rest"] -= seconds["script"]
    # kinds that this version does not know
    seconds["rest"] += max(lines.end - sum(seconds.values()), 0.0)
    before = min(rank.offset, max(generation.seconds - lines.end, 0.0))
    after = max(generation.seconds - lines.end - before, 0.0)
    imported = 0.0 if is_restart else imported_before(rank.facts, generation.began, before)
    seconds["import"] += imported
    seconds["lost" if is_restart else "start"] += before - imported
    seconds["end" if is_last else "lost"] += after
    # clocks of machines differ
    scale = generation.seconds / sum(seconds.values()) if sum(seconds.values()) else 1.0
    return {part: value * scale for part, value in seconds.items()}


def lost_lines(rank: WorkerRecord, kept: int | None, is_restart: bool) -> npt.NDArray[np.bool_]:
    """Returns a mask of the lines of work that was lost, or of a restart."""
    lines = rank.lines
    count = np.cumsum(np.where(lines.trains, lines.steps, 0.0))
    lost = np.zeros(len(lines.wall), np.bool_)
    if is_restart:
        lost |= count == 0
    if kept is not None:
        reached = np.flatnonzero(count >= kept)
        first = 0 if kept <= 0 else (reached[0] + 1 if len(reached) else len(lost))
        lost[first:] = True
    return lost


def goodput(seconds: Mapping[str, float]) -> float:
    """Returns the part of the time that was not lost."""
    whole = sum(seconds.values())
    return 1 - seconds["lost"] / whole if whole else 1.0
