"""Recommendations of what to change in a run, each with its expected gain: rules over its numbers.

The one with the greatest gain is recommended first. Each gain is an upper bound of a kind: nothing
else is taken to change. The next run says whether it came true (`syrtos.report.promises`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from syrtos.observe.clock import KINDS
from syrtos.report import exchanged, noise_scale, speed
from syrtos.report.forecast import SHARDING
from syrtos.report.read import WorkerRecord
from syrtos.report.situation import FIRST, Situation
from syrtos.report.steps import host_of, median
from syrtos.report.summary import SHARES

# What is worth a word: seconds, and a part of the time of training.
_WORTH_SECONDS, _WORTH_SHARE = 1.0, 0.05
# One worker is slow whose own time in a step is so many times that of the median worker; shards are
# skewed by this factor of samples.
_SLOW, _SKEWED = 1.15, 1.15
# So many pauses of a worker say nothing of its other steps.
_PAUSES = 2
_RETRACES = 3
_MIXED = 1.5
# Kinds of time that workers spend together, or that are none of training.
_TOGETHER = frozenset({"exchange", "wait", "build", "trace", "profile"})
_EVERY = 32
_OUR_CALLBACKS = frozenset({"BeforeUsers", "AfterUsers"})


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """Something that costs time.

    Attributes:
        rule: the name of the rule that found it.
        cost: what takes how much time, in words.
        action: the change that is recommended, in words.
        saved: s of the time of training that the change should save.
        training: s of training.
        is_measured: whether ``cost`` is the gain itself, as two runs have shown it.
    """

    rule: str
    cost: str
    action: str
    saved: float
    training: float
    is_measured: bool = False

    @property
    def gain(self) -> float:
        """The factor by which training is expected to be faster."""
        return self.training / max(self.training - self.saved, self.training / 100)

    def __str__(self) -> str:
        action = self.action[:1].upper() + self.action[1:]
        if self.is_measured:
            return f"{self.cost}. {action}."
        return f"{self.cost}. {action}: training should be {_faster(self.gain)}."

    def facts(self) -> dict[str, Any]:
        """Returns the finding as plain values, for JSON."""
        return {
            "rule": self.rule,
            "cost": self.cost,
            "action": self.action,
            "gain": round(self.gain, 3),
            "is_measured": self.is_measured,
            "text": str(self),
        }


def _faster(gain: float) -> str:
    return f"{gain:.1f}× as fast" if gain >= 1.15 else f"{gain - 1:.0%} faster"


def findings(situation: Situation) -> list[Recommendation]:
    """Returns the findings of all rules that are worth a word, the greatest saving first."""
    found = [finding for rule in RULES if (finding := rule(situation)) is not None]
    worth = [
        f
        for f in found
        if f.saved >= max(0.0 if f.is_measured else _WORTH_SECONDS, _WORTH_SHARE * f.training)
    ]
    return sorted(worth, key=lambda finding: -finding.saved)


def _finding(
    situation: Situation, rule: str, cost: str, action: str, saved: float
) -> Recommendation:
    return Recommendation(rule, cost, action, min(saved, situation.training), situation.training)


def _share(situation: Situation, seconds: float) -> str:
    return f"{seconds / situation.training:.0%} of training"


# -- rules -----------------------------------------------------------------------------------------


_OWN_RECORDS = (
    "let each worker read its own records (`syrtos.data.from_tfrecord`, `from_arrays` or"
    " `from_folder`)"
)
_READING = {
    "records": _OWN_RECORDS,
    "sliced": _OWN_RECORDS,
    "planned": (
        "make `parse_fn` cheaper (smaller images, fewer Python operations), or give each worker"
        " more cores"
    ),
    "own": (
        "let the pipeline prepare batches ahead (`dataset.prefetch(tf.data.AUTOTUNE)`,"
        " `num_parallel_calls` in `map`)"
    ),
}
# By the kind of data that `fit` is given, where each worker reads what the script hands over.
_PREPARING = {
    "prefetched": (
        "compute more than one batch at a time (`num_parallel_calls=tf.data.AUTOTUNE` in `map`), or"
        " keep what `map` makes (`cache`)"
    ),
    "loader": (
        "let the `DataLoader` read in processes of its own (`num_workers=2`,"
        " `persistent_workers=True`)"
    ),
    "py_dataset": (
        "let the `PyDataset` prepare batches in parallel (`workers=4`, `use_multiprocessing=True`"
        " in its `super().__init__`)"
    ),
    "generator": (
        "hand over a `keras.utils.PyDataset` or a `tf.data` pipeline, which prepare batches ahead,"
        " for the generator"
    ),
}


def slow_input(situation: Situation) -> Recommendation | None:
    """Checks whether all workers wait for their data."""
    by_rank = [each["input"] for each in situation.by_rank]
    # what one worker waits more than the others is that worker's: `slow_worker`
    seconds = min(by_rank)
    way = str(situation.facts.get("input", "own"))
    divided = way in ("records", "sliced") and situation.workers > 1
    # Where every worker reads all records, its own are one of so many parts.
    saved = (
        seconds * (1 - 1 / situation.workers)
        if divided
        else min(seconds, situation.training - seconds)
    )
    if situation.workers == 1 and way in ("records", "sliced"):
        way = "own"
    if way == "own" and situation.facts.get("input_of") == "arrays":
        # The script hands arrays to `fit`: it has no pipeline that could be changed.
        return None
    of = str(situation.facts.get("input_of", ""))
    action = _PREPARING.get(of, _READING["own"]) if way == "own" else _READING[way]
    return _finding(
        situation, "slow input", f"input takes {_share(situation, seconds)}", action, saved
    )


def slow_worker(situation: Situation) -> Recommendation | None:
    """Checks whether the others wait for one worker, or for the workers of one host."""
    if situation.workers < 2:
        return None
    # of all of training: the work at the beginning of an epoch is a part of its first step on one
    # worker, and of no step on another
    by_rank = [_without_pauses(rank) for rank in situation.ranks]
    own = [sum(each.values()) for each in by_rank]
    slowest = int(np.argmax(own))
    # others may only wait
    usual = max(_median_of_others(own, slowest), own[slowest] / 100)
    if own[slowest] < _SLOW * usual:
        return None
    beyond = {
        kind: seconds - _median_of_others([each[kind] for each in by_rank], slowest)
        for kind, seconds in by_rank[slowest].items()
    }
    cause = max(beyond, key=beyond.__getitem__)
    if cause == "compute" and exchanged.is_hidden(situation.facts):
        # XLA exchanges within its program: whichever worker asks first waits there for the others.
        return None
    rank = situation.ranks[slowest].rank
    cost = (
        f"rank {rank} takes {own[slowest] / usual:.1f}× as long for its part as the others, which"
        f" wait for it ({SHARES[cause]})"
    )
    return _of_cause(situation, slowest, cause, cost, own[slowest] - usual)


def _without_pauses(rank: WorkerRecord) -> dict[str, float]:
    """Returns a worker's own seconds of training, by kind, without its longest lines."""
    kinds = [number for number, kind in enumerate(KINDS) if kind not in _TOGETHER]
    lines = rank.lines.seconds[rank.lines.in_training][:, kinds]
    # a pause is explained with its step, and is no slow worker
    longest = np.argsort(lines.sum(axis=1))[len(lines) - _PAUSES :]
    left = np.delete(lines, longest, axis=0) if len(lines) > 2 * _PAUSES else lines
    return dict(zip((KINDS[number] for number in kinds), left.sum(axis=0).tolist(), strict=True))


def _median_of_others(values: Sequence[float], rank: int) -> float:
    return median([value for other, value in enumerate(values) if other != rank])


def _of_cause(
    situation: Situation, slowest: int, cause: str, cost: str, saved: float
) -> Recommendation | None:
    """Returns the finding about one slow worker, with the change that suits the cause.

    None for causes that have rules of their own.
    """
    rank = situation.ranks[slowest].rank
    if cause in ("callbacks", "checkpoint"):
        # These causes have rules of their own.
        return None
    samples = situation.samples()
    others = _median_of_others(samples, slowest)
    if others and samples[slowest] > _SKEWED * others:
        cost = (
            f"rank {rank} trains {samples[slowest]:,.0f} samples in a step and the others"
            f" {others:,.0f}, so they wait for it"
        )
        action = (
            "give all workers the same number of samples (`--batch global`, or shards of one size)"
        )
        mean = float(np.mean(samples))
        own = situation.own_seconds()
        saved = (
            max(own[slowest] - float(np.mean(own)), own[slowest] * (1 - mean / samples[slowest]))
            * situation.count
        )
        return _finding(situation, "skewed shards", cost, action, saved)
    host = host_of(situation.run, rank)
    if cause == "input":
        action = (
            f"look at what rank {rank} reads from on {host}: its disk, its files, or what else"
            " reads there"
        )
        return _finding(situation, "slow reader", cost, action, saved)
    if situation.hosts > 1:
        slow = [
            k
            for k, seconds in enumerate(situation.own_seconds())
            if seconds > _SLOW * min(situation.own_seconds())
        ]
        if all(host_of(situation.run, situation.ranks[k].rank) == host for k in slow):
            action = (
                f"look at {host}: other processes, heat, a slower processor; or train without it"
                " (`--hosts`)"
            )
            return _finding(situation, "slow host", cost, action, saved)
    action = (
        f"look at what else computes on the cores of rank {rank} on {host}, or give it another"
        " machine"
    )
    return _finding(situation, "slow worker", cost, action, saved)


def tiny_batches(situation: Situation) -> Recommendation | None:
    """Checks whether one worker alone would be faster.

    It would be if it computed all samples of a step in less time than the workers take to compute a
    part each, to exchange and to wait.
    """
    if situation.workers < 2:
        return None
    known = speed.find_measured(situation.run.folder)
    # What was measured is worth more than what is computed below.
    if known and not known.is_disturbed:
        were = "was" if known.workers == 1 else "were"
        cost = f"{known.fewer} {were} {_faster(1 / known.times)} ({known.run})"
        saved = (1 - known.times) * situation.training
        action = _fewer(situation, known.workers)
        found = _finding(situation, "tiny batches", cost, action, saved)
        return dataclasses.replace(found, is_measured=True)
    if exchanged.is_hidden(situation.facts):
        # Where XLA exchanges, computing is not told from exchanging.
        return None
    # of the fastest worker, for waiting for slower ones is no fault of small batches
    own, meets = situation.own_seconds(), situation.meeting()
    fastest = int(np.argmin(own))
    wall = own[fastest] + meets
    computes = situation.typical("compute")[fastest]
    if computes > _MIXED * situation.compute_with(fastest, 1):
        # These are steps of several models: there is no typical one.
        return None
    reads = situation.typical("input")[fastest]
    # one worker reads the records of all, but where each of them reads all already
    more = 0.0 if situation.facts.get("input") == "sliced" else reads * (situation.workers - 1)
    alone = own[fastest] - computes + situation.compute_with(fastest, situation.workers) + more
    cost = (
        f"a step of {sum(situation.samples()):,.0f} samples takes {wall * 1e3:.1f} ms, of which"
        f" workers compute {computes * 1e3:.1f} ms and exchange and wait {meets * 1e3:.1f} ms; one"
        f" worker alone takes {alone * 1e3:.1f} ms at most"
    )
    saved = (wall - alone) * situation.count
    return _finding(situation, "tiny batches", cost, _fewer(situation, 1), saved)


def _fewer(situation: Situation, workers: int) -> str:
    """Returns the action of fewer workers, or of a larger batch where that is of use."""
    measured = noise_scale.describe_noise_scale(situation.run)
    # Beyond the noise scale a larger batch keeps workers busy, and the training gains nothing.
    is_of_use = measured.get("scale", math.inf) > measured.get("batch", 0.0)
    return f"use `-n {workers}`" + ", or a larger batch" * is_of_use


def exchange_bound(situation: Situation) -> Recommendation | None:
    """Checks whether workers on several hosts wait for their network."""
    options = {"compress", "sync_every"} & situation.facts.keys()
    if situation.hosts < 2 or options:
        return None
    seconds = situation.meeting() * situation.count
    cost = (
        f"exchanging gradients between {situation.hosts} hosts takes {_share(situation, seconds)}"
    )
    if seconds > 0.7 * situation.training:
        action = (
            f"`--sync-every {_EVERY}` exchanges weights every {_EVERY} steps instead (local SGD:"
            " see docs/slow-networks.md; `--compress bf16` halves the bytes and keeps each step)"
        )
        return _finding(situation, "exchange-bound", cost, action, seconds * (1 - 1 / _EVERY))
    return _finding(
        situation, "exchange-bound", cost, "`--compress bf16` sends half the bytes", seconds / 2
    )


def update_bound(situation: Situation) -> Recommendation | None:
    """Checks whether each worker updates all weights, while it could update a part."""
    facts = situation.facts
    if not facts.get("optimizer_state") or situation.workers < 2 or situation.hosts > 1:
        return None
    update = situation.seconds("update")
    saved = update * (1 - 1 / situation.workers) - situation.count * SHARDING * facts.get(
        "gradient_bytes", 0
    )
    kept = facts["optimizer_state"] / 1e6
    action = (
        "`--shard-update` divides it among the workers, each of which keeps"
        f" {kept / situation.workers:,.0f} of {kept:,.0f} MB of the optimizer's state"
    )
    return _finding(
        situation,
        "update-bound",
        f"the optimizer's update takes {_share(situation, update)}",
        action,
        saved,
    )


def slow_callback(situation: Situation) -> Recommendation | None:
    """Checks whether workers wait for a callback of rank 0, or a callback works on all of them."""
    of_each = [each["callbacks"] for each in situation.by_rank]
    told = situation.ranks[0].facts.get("callback_seconds") or {}
    taken = {name: spent for name, spent in told.items() if name not in _OUR_CALLBACKS}
    name = max(taken, key=taken.__getitem__, default="")
    alone = of_each[0] - median(of_each[1:])
    waits = len(of_each) > 1 and alone > of_each[0] / 2
    seconds = min(alone if waits else of_each[0], sum(taken.values()) if taken else of_each[0])
    which = "callbacks of rank 0" if waits else "callbacks"
    most = f", most of it `{name}` ({taken[name]:,.1f} s)" if name else ""
    cost = (
        f"{which} take"
        f" {_share(situation, seconds)}{most}{', and the other workers wait for it' if waits else ''}"
    )
    action = f"let {f'`{name}`' if name else 'them'} work less often, or in a thread of its own"
    return _finding(situation, "slow callback", cost, action, seconds)


def frequent_checkpoints(situation: Situation) -> Recommendation | None:
    """Checks whether the script saves often; snapshots for restarts are not counted."""
    # snapshots for restarts are made more rarely the more they cost
    snapshots = [
        sum((rank.facts.get("snapshot_seconds") or {}).values()) for rank in situation.ranks
    ]
    seconds = max(
        each["checkpoint"] - ours for each, ours in zip(situation.by_rank, snapshots, strict=True)
    )
    action = (
        "save a fifth as often (`save_freq`), or weights alone (`save_weights_only=True`); a run"
        " that is killed goes on from memory, not from these files"
    )
    cost = f"checkpoints of the script take {_share(situation, seconds)}"
    return _finding(situation, "frequent checkpoints", cost, action, 0.8 * seconds)


def retracing(situation: Situation) -> Recommendation | None:
    """Checks whether one `tf.function` is made a graph again and again.

    A graph for each of several functions, or of several models, is as it must be.
    """
    again = [each.of("trace")[FIRST:] * each.count[FIRST:] for each in situation.steps]
    seconds = max(float(each.sum()) for each in again)
    told: dict[str, float] = dict(situation.facts.get("graphs") or {})
    graphs = {name: count for name, count in told.items() if not name.startswith("Dataset_")}
    name = max(graphs, key=graphs.__getitem__, default="")
    if graphs.get(name, 0) < _RETRACES + 2:
        return None
    seconds *= (graphs[name] - 2) / max(sum(graphs.values()) - 2, 1)
    cost = (
        f"making graphs anew takes {_share(situation, seconds)}: `{name}` has {graphs[name]:,.0f}"
        " of them"
    )
    action = (
        "give it tensors of one shape and dtype (`drop_remainder=True`, padded lengths, an"
        " `input_signature`), and numbers as tensors"
    )
    return _finding(situation, "retracing", cost, action, seconds)


def frequent_evaluation(situation: Situation) -> Recommendation | None:
    """Checks whether `evaluate`, `predict` and validation take much of the time beside training."""
    each = [float(rank.lines.wall[rank.lines.evaluates].sum()) for rank in situation.ranks]
    seconds, whole = float(np.mean(each)), situation.training + float(np.mean(each))
    cost = f"evaluation takes {seconds / whole:.0%} of training and evaluation"
    action = (
        "evaluate less often (`validation_freq=5`), on fewer samples, or in larger batches"
        " (`validation_batch_size`)"
    )
    return Recommendation("frequent evaluation", cost, action, 0.8 * seconds, whole)


RULES: Sequence[Callable[[Situation], Recommendation | None]] = (
    slow_input, slow_worker, tiny_batches, exchange_bound, update_bound, slow_callback, frequent_checkpoints, retracing,
    frequent_evaluation,
)  # fmt: skip
