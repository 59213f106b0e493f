"""Training steps over a run: how long each took, and which took much longer and why.

A map shows which workers were slow at which times.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from syrtos.observe.clock import KINDS
from syrtos.report.read import Floats, Generation, RunRecord, WorkerRecord
from syrtos.report.summary import SHARES

# Points of a chart, columns of the heat map, and steps that are explained, at most.
_POINTS, _COLUMNS, _EXPLAINED = 800, 120, 12
# A step is an outlier that took so many times the median, and so many seconds more.
_MUCH, _WORTH = 1.5, 0.01


def median(values: Sequence[float] | Floats) -> float:
    """Returns the median; 0 of an empty sequence."""
    return float(np.median(values)) if len(values) else 0.0


@dataclasses.dataclass(frozen=True)
class WorkerSteps:
    """The training steps of one worker over all generations, a row for each line of its ledgers.

    A line may be of several steps that were executed as one.

    Attributes:
        at: s from the start of the run to the end of the line.
        number: the number of the last step of the line, from 1.
        wall: s of one step.
        samples: samples of this worker in one step.
        seconds: (rows, kinds) s of one step, by kind.
        count: steps of the line.
        generation: the index of the generation that made them.
    """

    at: Floats
    number: Floats
    wall: Floats
    samples: Floats
    seconds: Floats
    count: Floats
    generation: Floats

    def of(self, kind: str) -> Floats:
        """Returns the seconds of one kind in a step, by row."""
        return self.seconds[:, KINDS.index(kind)]  # type: ignore[arg-type]

    @property
    def own_seconds(self) -> Floats:
        """The worker's own seconds of a step: not in exchanges, nor waiting for other workers."""
        return self.wall - self.of("exchange") - self.of("wait")

    @functools.cached_property
    def usual(self) -> Floats:
        """The median seconds of a step, by kind."""
        return np.median(self.seconds, axis=0)

    def rows(self, count: int) -> WorkerSteps:
        """Returns the first rows."""
        return WorkerSteps(
            *(getattr(self, field.name)[:count] for field in dataclasses.fields(self))
        )


def of_rank(run: RunRecord, rank: int) -> WorkerSteps:
    """Returns the steps of the worker with this rank; of repeated steps the second time counts."""
    parts = [
        _of_lines(each, generation, number, run.step_kept(number))
        for number, generation in enumerate(run.generations)
        for each in generation.ranks
        if each.rank == rank
    ]
    return _join_steps(parts)


def of_ranks(run: RunRecord, number: int | None = None) -> list[WorkerSteps]:
    """Returns the steps of each worker of a generation, as far as all workers have made them.

    ``number`` is the generation's index; by default it is the last that has trained.
    """
    number = list(run.generations).index(run.last_trained) if number is None else number
    generation = run.generations[number]
    found = [_of_lines(rank, generation, number, None) for rank in generation.ranks]
    common = min((len(steps.wall) for steps in found), default=0)
    return [steps.rows(common) for steps in found]


def _of_lines(
    rank: WorkerRecord, generation: Generation, index: int, kept: int | None
) -> WorkerSteps:
    lines, chosen = rank.lines, rank.lines.trains
    count = lines.steps[chosen]
    number = generation.trained_before + np.cumsum(count)
    at = (generation.offset + rank.offset + lines.start + lines.wall)[chosen]
    each = (
        lines.wall[chosen] / count,
        lines.samples[chosen] / count,
        lines.seconds[chosen] / count[:, None],
    )
    found = WorkerSteps(at, number, *each, count, np.full(len(count), float(index)))
    return found.rows(len(number) if kept is None else int(np.searchsorted(number, kept, "right")))


def _join_steps(parts: Sequence[WorkerSteps]) -> WorkerSteps:
    if not parts:
        empty = np.zeros(0)
        return WorkerSteps(empty, empty, empty, empty, np.zeros((0, len(KINDS))), empty, empty)
    return WorkerSteps(
        *(
            np.concatenate([getattr(part, field.name) for part in parts])
            for field in dataclasses.fields(WorkerSteps)
        )
    )


def describe_steps(run: RunRecord) -> dict[str, Any]:
    """Returns the steps of rank 0 for a chart.

    Many steps are shown by groups of neighbours, with the least, median and most of each.
    """
    steps = of_rank(run, run.last_trained.first.rank if run.last_trained.first else 0)
    rows = len(steps.wall)
    ms = steps.wall * 1e3
    groups = np.array_split(np.arange(rows), min(rows, _POINTS)) if rows else []
    return {
        "count": int(
            max((each.trained_before + each.steps_trained for each in run.generations), default=0)
        ),
        "median_ms": median(ms[1:]) or median(ms),
        "p95_ms": float(np.percentile(ms[1:], 95)) if rows > 1 else median(ms),
        "samples": float(np.median(steps.samples)) if rows else 0.0,
        "parts_ms": {
            kind: float(steps.of(kind)[1:].mean() * 1e3) if rows > 1 else 0.0 for kind in KINDS
        },
        "number": [int(steps.number[group[-1]]) for group in groups],
        "at": [round(float(steps.at[group[-1]]), 3) for group in groups],
        "ms": [round(float(np.median(ms[group])), 3) for group in groups],
        "least_ms": [round(float(ms[group].min()), 3) for group in groups],
        "most_ms": [round(float(ms[group].max()), 3) for group in groups],
        "outliers": _outliers(run, steps),
    }


def _outliers(run: RunRecord, steps: WorkerSteps) -> list[dict[str, Any]]:
    """Returns the steps that took longest beyond the usual time, with the cause."""
    if len(steps.wall) < 4:
        return []
    usual = float(np.median(steps.wall))
    beyond = steps.wall - usual
    found = np.flatnonzero((steps.wall > _MUCH * usual) & (beyond > _WORTH))
    found = found[np.argsort(-beyond[found])][:_EXPLAINED]
    together = run.facts.get("training") != "asynchronous"
    of_generations = {
        int(k): of_ranks(run, int(k)) if together else []
        for k in np.unique(steps.generation[found])
    }
    return [
        {
            "number": int(steps.number[row]),
            "at": round(float(steps.at[row]), 3),
            "ms": round(float(steps.wall[row] * 1e3), 3),
            "why": _describe_cause(
                run, steps, int(row), of_generations[int(steps.generation[row])]
            ),
        }
        for row in sorted(found)
    ]


def _describe_cause(
    run: RunRecord, steps: WorkerSteps, row: int, others: Sequence[WorkerSteps]
) -> str:
    """Returns the kind of time that a step had more of than usual, in words.

    The text for waiting also names the worker that was waited for.

    ``others``: the steps of all workers of its generation.
    """
    kind, more = _most_beyond(steps, row)
    words = f"{SHARES[kind]} took {more:,.3f} s longer than usual"
    if kind == "wait":
        for rank, theirs in zip(
            run.generations[int(steps.generation[row])].ranks, others, strict=False
        ):
            same = np.flatnonzero(theirs.number == steps.number[row])
            if rank.rank and len(same):
                cause, longer = _most_beyond(theirs, int(same[0]))
                if cause != "wait" and longer > more / 2:
                    return (
                        f"waited {more:,.3f} s for rank {rank.rank}, whose {SHARES[cause]} took"
                        f" {longer:,.3f} s longer than usual"
                    )
    if kind == "trace":
        return f"{words}: a graph was made, as for a first step or a new shape of a batch"
    return words


def _most_beyond(steps: WorkerSteps, row: int) -> tuple[str, float]:
    """Returns the kind with the most seconds beyond the usual, and these seconds.

    The seconds are those of all steps that were executed as one.
    """
    beyond = (steps.seconds[row] - steps.usual) * steps.count[row]
    k = int(beyond.argmax())
    return KINDS[k], float(beyond[k])


def heat(run: RunRecord) -> dict[str, Any]:
    """Returns a map of workers against time.

    Each value is a worker's own time for a step, relative to the median worker's at that time. With
    one worker the time is relative to its own median. The map is of the last generation that has
    trained.
    """
    generation = run.last_trained
    steps = of_ranks(run)
    rows = len(steps[0].wall) if steps else 0
    if rows < 2:
        return {"ranks": [], "columns": []}
    columns = np.array_split(np.arange(1, rows), min(rows - 1, _COLUMNS))
    own = np.stack([_by_column(each.own_seconds, columns) for each in steps])
    usual = np.median(own, axis=0) if len(steps) > 1 else np.full(len(columns), np.median(own))
    return {
        "ranks": [
            f"rank {rank.rank}"
            + (f", {host_of(run, rank.rank)}" if _several_hosts(generation) else "")
            for rank in generation.ranks
        ],
        "columns": [round(float(steps[0].at[column[-1]]), 2) for column in columns],
        "times": np.round(own / np.maximum(usual, 1e-9), 3).tolist(),
        "ms": np.round(own * 1e3, 3).tolist(),
        "input_ms": (
            np.round(
                np.stack([_by_column(each.of("input"), columns) for each in steps]) * 1e3, 3
            ).tolist()
        ),
    }


def _by_column(values: Floats, columns: Sequence[npt.NDArray[np.int_]]) -> Floats:
    return np.array([values[column].mean() for column in columns])


def _several_hosts(generation: Generation) -> bool:
    return any("node" in rank.facts for rank in generation.ranks)


def host_of(run: RunRecord, rank: int) -> str:
    """Returns the host of a worker.

    Hosts of one name, as several on one machine have, are told apart by number.
    """
    facts = next((each.facts for each in run.last_trained.ranks if each.rank == rank), {})
    node = facts.get("node")
    name = str(facts.get("host", "this machine"))
    names = {str(each.facts.get("host")) for each in run.last_trained.ranks}
    nodes = {each.facts.get("node") for each in run.last_trained.ranks}
    return f"{name} ({node})" if node is not None and len(names) < len(nodes) else name
