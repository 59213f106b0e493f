"""The numbers about a run that recommendations are made from.

They are of training alone, in the last generation that has trained.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from syrtos.observe.clock import KINDS
from syrtos.report import steps
from syrtos.report.read import RunRecord, WorkerRecord
from syrtos.report.steps import WorkerSteps, median

FIRST = 2  # steps that trace, compile and touch memory for the first time


@dataclasses.dataclass(frozen=True)
class Situation:
    """The numbers about a run that has trained.

    Attributes:
        run: the whole record.
        ranks: the workers.
        steps: the steps of each worker, as far as all workers have made them.
    """

    run: RunRecord
    ranks: Sequence[WorkerRecord]
    steps: Sequence[WorkerSteps]

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts about how things are done in this run."""
        return self.run.facts

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.ranks)

    @property
    def hosts(self) -> int:
        """The number of hosts of the workers."""
        return int(self.facts.get("hosts", 1))

    @functools.cached_property
    def by_rank(self) -> list[dict[str, float]]:
        """The seconds of training of each worker, by kind.

        Training is `fit` without evaluations, and loops of the script's own.
        """
        found = []
        for rank in self.ranks:
            seconds = rank.lines.seconds[rank.lines.in_training]
            found.append(dict(zip(KINDS, seconds.sum(axis=0).tolist(), strict=True)))
        return found

    def seconds(self, kind: str) -> float:
        """Returns the seconds of training of one kind, of the mean worker."""
        return sum(each[kind] for each in self.by_rank) / max(self.workers, 1)

    @functools.cached_property
    def training(self) -> float:
        """The seconds of training of the mean worker, without profiling."""
        return sum(self.seconds(kind) for kind in KINDS if kind != "profile")

    @property
    def count(self) -> int:
        """The number of training steps that were made."""
        return int(self.steps[0].count.sum())

    def typical(self, kind: str) -> list[float]:
        """Returns each worker's mean seconds of one kind in a step, without the first steps."""
        return [float(each.of(kind)[FIRST:].mean()) for each in self.steps]

    def meeting(self) -> float:
        """Returns the seconds of a step in exchanges and waiting, on the worker with the fewest."""
        # The others spend more because they wait for slower ones.
        return min(
            e + w for e, w in zip(self.typical("exchange"), self.typical("wait"), strict=True)
        )

    def own_seconds(self) -> list[float]:
        """Returns each worker's mean seconds by itself in a step, without the first steps."""
        return [float(each.own_seconds[FIRST:].mean()) for each in self.steps]

    def samples(self) -> list[float]:
        """Returns the mean number of samples of each worker in a step, without the first steps."""
        return [float(each.samples[FIRST:].mean()) for each in self.steps]

    def compute_with(self, worker: int, times: float) -> float:
        """Returns a worker's seconds to compute a step of ``times`` as many samples as its own."""
        # Computing is a fixed cost and one for each sample. Steps of unequal size, as the last
        # batch of an epoch, tell them apart; without such steps all of it is taken to grow with the
        # samples, which is the most that it can.
        steps = self.steps[worker]
        samples, compute = steps.samples[FIRST:], steps.of("compute")[FIRST:]
        usual = float(np.median(samples))
        seconds = median(compute[samples == usual])
        small = samples < 0.75 * usual
        if small.sum() < 3:
            return seconds * times
        each = max(seconds - median(compute[small]), 0.0) / (usual - float(samples[small].mean()))
        return min(seconds + (times - 1) * usual * each, seconds * times)


def of(run: RunRecord) -> Situation | None:
    """Returns a run's situation; None unless all workers made more than a few steps together."""
    found = steps.of_ranks(run)
    if not found or len(found[0].wall) <= FIRST + 1 or run.facts.get("training") == "asynchronous":
        return None
    return Situation(run, run.last_trained.ranks, found)


def samples_per_second(run: RunRecord, without_first: bool = False) -> float:
    """Returns the samples of all workers in the last trained generation, per second of training.

    Evaluations are left out. If samples are not known, the steps count instead.

    ``without_first`` leaves out building, tracing and the first steps, so that runs of different
    lengths can be compared.
    """
    samples = made = longest = 0.0
    for rank in run.last_trained.ranks:
        lines = rank.lines
        first = np.flatnonzero(lines.trains)[:FIRST] if without_first else np.zeros(0, np.int64)
        chosen = lines.in_training.copy()
        chosen[first] = False
        spent = float(lines.wall[chosen].sum())
        if without_first:
            spent -= float((lines.of("build") + lines.of("trace"))[chosen].sum())
        samples += float(lines.samples[chosen & lines.trains].sum())
        made = max(made, float(lines.steps[chosen & lines.trains].sum()))
        longest = max(longest, spent)
    return (samples or made) / longest if longest > 0 else 0.0
