"""A forecast of a step with more workers, from the ledgers of a finished run.

The forecast also takes the latency and the bandwidth of a link. With a global batch each of N
workers computes one of N parts of the same samples (`with_workers`); with a batch per worker, twice
the workers train twice the samples in a step. Costs of collectives are those of Thakur, Rabenseifner
and Gropp 2005 (doi:10.1177/1094342005051521): a sum of S bytes over H hosts sends 2 (H - 1) / H · S
over each host's link, in 2 · ⌈log₂ H⌉ rounds of latency, or in 2 (H - 1) around a ring. No overlap
of communication and compute is assumed, as on processors whose cores all compute.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from syrtos.errors import ConfigurationError
from syrtos.report.exchanged import COUNTS
from syrtos.report.ledger_lines import is_sound_line
from syrtos.report.read import lines
from syrtos.run_dir import RunDir

# Steps that are measured: those before it trace, compile and touch memory for the first time.
_FIRST = 2
# What `--shard-update` takes longer, inside a host, for each byte of the weights: their parts are
# gathered, and passed over once more (docs/performance.md).
SHARDING = 2.4e-10


@dataclasses.dataclass(frozen=True)
class Link:
    """The network between the hosts.

    Attributes:
        latency: s from one host to another, of a message without content.
        bandwidth: bytes/s of a host in one direction.
    """

    latency: float
    bandwidth: float


@dataclasses.dataclass(frozen=True)
class MeasuredStep:
    """The median training step of a run on one host.

    Attributes:
        workers: the number of workers of the run.
        samples: samples of one worker.
        own: s that a worker spends by itself.
        fixed: s of ``own`` that do not grow with the worker's samples.
        waits: s in which a worker waits for slower ones.
        update: s of ``own`` in the optimizer's update.
        inside: s in exchanges, which went through memory.
        gradients: bytes that each worker gives to be summed.
        sums: the number of exchanges of gradients.
        meetings: the number of all exchanges, those of gradients and small ones.
    """

    workers: int
    samples: float
    own: float
    fixed: float
    waits: float
    update: float
    inside: float
    gradients: float
    sums: float
    meetings: float


@dataclasses.dataclass(frozen=True)
class Layout:
    """The machines of a step: ``hosts`` hosts and ``workers`` workers in all, joined by a link."""

    workers: int
    hosts: int
    link: Link

    @property
    def rounds(self) -> int:
        """The number of rounds of messages after which each host can know of all others."""
        return math.ceil(math.log2(self.hosts))

    def wire(self, size: float) -> float:
        """Returns the seconds in which a host sends its part of a sum of ``size`` bytes."""
        return 2 * (self.hosts - 1) / self.hosts * size / self.link.bandwidth


def with_workers(step: MeasuredStep, workers: int, batch: str) -> MeasuredStep:
    """Returns the step of each of ``workers`` workers, as far as it spends time by itself.

    Args:
        step: the measured step.
        workers: the number of workers.
        batch: "global" or "per-worker", as for `syrtos run --batch`.
    """
    if batch == "per-worker":
        return step
    whole = step.samples * step.workers
    # The slowest worker has one of the samples that can't be divided equally.
    most = math.ceil(whole / workers) if whole else 0
    times = most / step.samples if most else step.workers / workers
    return dataclasses.replace(
        step, samples=whole / workers, own=step.fixed + (step.own - step.fixed) * times
    )


def hierarchical(step: MeasuredStep, place: Layout) -> float:
    """Returns the seconds of a step as syrtos makes it.

    Exchanges go through memory inside a host, and between hosts by all local ranks at once.
    """
    rounds = (step.meetings + 2 * step.sums) * place.rounds
    return _beside_wire(step, place) + place.wire(step.gradients) + rounds * place.link.latency


def ring(step: MeasuredStep, place: Layout) -> float:
    """Returns the seconds of a step whose sums go around one ring of all workers."""
    rounds = step.meetings * place.rounds + (
        2 * (place.workers - 1) * step.sums if place.hosts > 1 else 0
    )
    return _beside_wire(step, place) + place.wire(step.gradients) + rounds * place.link.latency


def _beside_wire(step: MeasuredStep, place: Layout) -> float:
    return step.own + (step.waits + step.inside if place.workers > 1 else 0.0)


def sharded_step(step: MeasuredStep, place: Layout) -> float:
    """Returns the seconds of a step with `--shard-update`.

    Each worker updates its part, and the parts are gathered. Between hosts as many bytes travel as
    without the option.
    """
    return (
        hierarchical(step, place)
        - step.update * (1 - 1 / place.workers)
        + SHARDING * step.gradients
    )


def local(step: MeasuredStep, place: Layout, every: int = 32) -> float:
    """Returns the mean seconds of a step with `--sync-every`."""
    # Workers that do not meet in a step do not wait in it for slower ones, but at the next meeting
    # for all of them.
    own = step.own + (step.waits if place.workers > 1 else 0.0)
    return own + (hierarchical(step, place) - own) / every


WAYS: Mapping[str, Callable[[MeasuredStep, Layout], float]] = {
    "each step": hierarchical,
    "ring": ring,
    "sharded": sharded_step,
    "every 32": local,
}


def measured_step(run_dir: Path, alone: float | None = None) -> MeasuredStep:
    """Returns the step of a finished run, or of one generation of its workers.

    Args:
        run_dir: the folder of the run or of the generation.
        alone: s of a step of one worker that computes all samples of the step; None if none was
            measured: then all computing is taken to grow with the samples.

    Raises:
        ConfigurationError: the folder is not that of a run; the run had one worker or several
            hosts, too few steps of `fit`, an option that changes exchanges, or no exchange of
            gradients by MPI.
    """
    steps, facts = _read(run_dir)
    if problem := _problem(run_dir, steps, facts):
        raise ConfigurationError(problem)
    exchange, update, waits = (
        statistics.fmean(_median(lines, kind) for lines in steps)
        for kind in ("exchange", "update", "wait")
    )
    own = statistics.fmean(_median(lines, "wall") for lines in steps) - exchange - waits
    if alone is None:
        kinds = ["compute"] if facts.get("input") == "sliced" else ["compute", "input"]
        grows = sum(statistics.fmean(_median(lines, kind) for lines in steps) for kind in kinds)
    else:
        grows = (alone - own) / (len(steps) - 1)
    return MeasuredStep(
        workers=len(steps),
        samples=statistics.fmean(_median(lines, "samples") for lines in steps),
        own=own,
        fixed=own - min(max(grows, 0.0), own),
        waits=waits,
        update=update,
        inside=exchange,
        gradients=facts["gradient_bytes"],
        sums=facts["gradient_sums"],
        meetings=facts["meetings"],
    )


def is_measured(run_dir: Path) -> bool:
    """Returns whether `measured_step` accepts the folder."""
    return not _problem(run_dir, *_read(run_dir))


def _read(run_dir: Path) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
    """Returns each worker's steps, without the first ones, and the facts that rank 0 has noted."""
    ranks = []
    while (path := RunDir(run_dir).ledger(len(ranks))).exists():
        ranks.append(list(lines(path, [], is_sound_line)))
    told = [line for line in ranks[0] if line["phase"] == "facts"] if ranks else []
    facts = {key: value for line in told for key, value in line.items()}
    steps = [
        [line for line in told if line["phase"] == "train" and line.get("steps")] for told in ranks
    ]
    return [told[_FIRST:] for told in steps], facts


def _problem(run_dir: Path, steps: list[list[dict[str, Any]]], facts: Mapping[str, Any]) -> str:
    """Returns the reason why nothing can be forecast from the run; empty if it can."""
    if not steps:
        return (
            f"{run_dir} is not the run directory of a run. Name the folder that `syrtos run`"
            " printed."
        )
    if len(steps) == 1 or "hosts" in facts:
        return (
            "A forecast needs a run of two workers or more on one host: what they exchange through"
            f" memory is measured in it, and what they would send is added. The run in {run_dir}"
            f" had {'one worker' if len(steps) == 1 else 'several hosts'}."
        )
    if not all(steps) or not facts.keys() >= COUNTS:
        return (
            f"The run in {run_dir} has not come to the end of a `fit` of more than {_FIRST} steps,"
            " which a forecast is made from. Let a `fit` of some ten steps end."
        )
    asked = [flag for name, flag in _OTHERWISE.items() if facts.get(name, "none") != "none"]
    if asked or not facts["gradient_sums"]:
        why = (
            f"was made with {asked[0]}"
            if asked
            else "has exchanged no gradients by MPI, as with JAX or --exchange framework"
        )
        return (
            f"The run in {run_dir} {why}. A forecast needs a run that exchanges gradients as they"
            " are, by MPI, in each step."
        )
    return ""


# Facts of runs that exchange something else than each gradient in each step.
_OTHERWISE = {
    "asked_to_sync_every": "--sync-every",
    "asked_to_shard_update": "--shard-update",
    "compress": "--compress",
}


def _median(lines: list[dict[str, Any]], name: str) -> float:
    """Returns the median of a figure of one step. Steps executed as one share their line."""
    return statistics.median(line.get(name, 0.0) / line["steps"] for line in lines)
