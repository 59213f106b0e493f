"""The gradient noise scale: the batch size up to which larger batches, so more workers, pay off.

With batches of b samples on each of N workers and B = N·b in a step, the squared norm of a worker's
gradient is |G|² + S/b in the mean and that of the mean over workers |G|² + S/B, where S is the sum
of the variances of a sample's gradient and G the gradient of all data. Both unknowns follow from
the two measurements; the noise scale is S/|G|², and at a batch of that size training takes twice
the fewest possible steps, and twice the fewest possible samples (McCandlish et al., arXiv
1812.06162, section 2 and appendix A.1). S and |G|² are averaged over steps before one is divided by
the other.

If XLA exchanges (JAX) no worker sees its own gradient: then the two sizes are one step and the
steps that Adam's first moment averages over.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from syrtos.report.read import Floats, RunRecord

_FEWEST = 8  # measurements
# how many times the change of the gradients their noise must be, to be told from it
_CLEAR = 3.0
_DRAWS, _BLOCKS, _WINDOWS = 500, 16, 40
_NOT = "The gradient noise scale was not measured: "


def describe_noise_scale(run: RunRecord, pays: bool = True) -> dict[str, Any]:
    """Returns the last trained generation's noise scale, from the second half of its steps.

    ``scale`` is in samples, with ``low`` and ``high`` (95 % of draws of blocks of steps); ``batch``
    is the number of samples of a step, ``series`` has step and scale over the run, ``supported`` is
    the number of workers that such a batch keeps busy as it keeps these, ``rates`` are factors for
    the learning rate, and ``text`` says what follows. If ``scale`` is missing, the text says why.

    ``pays``: whether the run's workers are faster than fewer of them; else the text names no number
    of workers.
    """
    measured = _by_moments(run) if run.facts.get("exchange") == "compiled" else _measurements(run)
    if isinstance(measured, str):
        return {"text": _NOT + measured}
    at, variance, square, batch = measured
    # the scale grows while a model learns
    half = slice(len(at) // 2, None)
    scale = _ratio(variance[half], square[half])
    low, high = _interval(variance[half], square[half])
    if scale is None:
        text = (
            _NOT
            + "over these steps the noise of the gradients hides the gradient itself. A longer run"
            " or a larger batch can tell."
        )
        return {"text": text, "batch": batch, "series": [], "measured": len(at)}
    workers = len(run.last_trained.ranks)
    supported = max(int(scale / batch * workers), 1)
    epoch = (
        max((line.get("steps_per_epoch") or 0 for line in run.last_trained.epochs), default=0)
        * batch
    )
    return {
        "scale": scale,
        "low": low,
        "high": high,
        "batch": batch,
        "series": _series(at, variance, square),
        "measured": len(at),
        "supported": supported,
        "rates": _rates(scale, batch),
        "text": _text((scale, low, high), batch, workers, supported if pays else 0)
        + _epoch_limit(scale, epoch),
    }


def _measurements(run: RunRecord) -> tuple[Floats, Floats, Floats, float] | str:
    """Returns step, S and |G|² of each measurement, and the samples of a step.

    If there are no measurements, the result is a text with the reason.
    """
    ranks = [rank.lines for rank in run.last_trained.ranks]
    if len(ranks) < 2:
        return "it compares workers, and the run had one."
    made = min(int(lines.trains.sum()) for lines in ranks)
    own, mean, samples = (
        np.stack([getattr(lines, name)[lines.trains][:made] for lines in ranks])
        for name in ("own_square", "mean_square", "samples")
    )
    chosen = ((own > 0) & (samples > 0)).all(axis=0)
    if chosen.sum() < _FEWEST:
        return _reason_unmeasured(run)
    own, mean, samples = own[:, chosen], mean[0, chosen], samples[:, chosen]
    whole = samples.sum(axis=0)
    # the mean of 1/b, for shares may be unequal
    variance = (own.mean(axis=0) - mean) / ((1 / samples).mean(axis=0) - 1 / whole)
    return (
        np.flatnonzero(chosen).astype(np.float64) + 1,
        variance,
        mean - variance / whole,
        float(np.median(whole)),
    )


def _reason_unmeasured(run: RunRecord) -> str:
    facts = run.facts
    ways = {
        "with --sync-every workers exchange weights.": "sync_every" in facts,
        "parameter servers get the gradients of one worker at a time.": (
            facts.get("training") == "asynchronous"
        ),
        "with --shard-update no worker gets the whole mean gradient.": (
            "asked_to_shard_update" in facts
        ),
        "with --compress gradients are rounded.": str(facts.get("compress", "none")) != "none",
    }
    return next(
        (why for why, holds in ways.items() if holds),
        "too few steps of `fit` exchanged gradients whose numbers of samples are known.",
    )


def _by_moments(run: RunRecord) -> tuple[Floats, Floats, Floats, float] | str:
    """Returns the same as `_measurements`, from Adam's moments at the ends of epochs.

    They give E|g|² over some steps, and the squared norm of a running mean over fewer.
    """
    found = [
        (line["trained"], *line["moments"])
        for line in run.last_trained.epochs
        if len(line.get("moments") or ()) == 4
    ]
    if len(found) < 3:
        return (
            "XLA exchanges gradients inside of its program, and only the moments of Adam, at the"
            " ends of three epochs or more, tell it there."
        )
    at, squares, mean, kept, window = (
        np.array(column, np.float64) for column in zip(*found, strict=True)
    )
    # S / B
    excess = np.asarray((squares - mean) / np.maximum(1 - kept, 1e-9), np.float64)
    changes = np.abs(np.diff(np.log(squares))) / np.maximum(np.diff(at), 1) * window[1:]
    # a gradient that becomes smaller makes E|g|² larger too, so only what is well above that change
    # is noise
    clear = excess[1:] > _CLEAR * changes * squares[1:]
    if clear.sum() < 2:
        return (
            "the gradients changed too much from epoch to epoch to tell their noise from that, by"
            " Adam's moments."
        )
    lines = [rank.lines for rank in run.last_trained.ranks]
    batch = float(sum(np.median(each.samples[each.trains]) for each in lines))
    return at[1:][clear], (excess * batch)[1:][clear], (squares - excess)[1:][clear], batch


def _ratio(variance: Floats, square: Floats) -> float | None:
    noise, signal = float(variance.mean()), float(square.mean())
    return noise / signal if noise > 0 and signal > 0 else None


def _interval(variance: Floats, square: Floats) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of draws of blocks of steps; its end is None if it has none."""
    random, size = np.random.default_rng(0), max(len(variance) // _BLOCKS, 1)
    starts = random.integers(0, len(variance) - size + 1, (_DRAWS, -(-len(variance) // size)))
    picked = (starts[:, :, None] + np.arange(size)).reshape(_DRAWS, -1)
    noise, signal = variance[picked].mean(axis=1), square[picked].mean(axis=1)
    scales = np.full(_DRAWS, np.inf)
    np.divide(np.maximum(noise, 0), signal, out=scales, where=signal > 0)
    # Not between two draws: one of them may be infinite.
    low, high = np.percentile(scales, [2.5, 97.5], method="nearest")
    return (float(low), float(high) if math.isfinite(high) else None)


def _series(at: Floats, variance: Floats, square: Floats) -> list[list[float | None]]:
    """Returns step and scale of groups of measurements that follow each other."""
    count = min(_WINDOWS, max(len(at) // 4, 1))
    groups = zip(*(np.array_split(values, count) for values in (at, variance, square)), strict=True)
    return [[float(steps[-1]), _ratio(noise, signal)] for steps, noise, signal in groups]


def _rates(scale: float, batch: float) -> dict[str, float]:
    """Returns factors of a learning rate that suits this batch, for a batch of ``scale`` samples.

    They are by linear scaling, by its square root, and by the noise scale itself (equation 2.7: the
    best rate of SGD is proportional to 1 / (1 + scale/batch)).
    """
    ratio = scale / batch
    return {"linear": ratio, "square_root": math.sqrt(ratio), "noise_scale": (1 + ratio) / 2}


def _epoch_limit(scale: float, epoch: float) -> str:
    """Returns a sentence if the longest epoch of the run has fewer samples than ``scale``.

    ``epoch`` is about the number of samples of that epoch. The text is empty for other runs.
    """
    return (
        f" No step can have that many here: an epoch had about {_round(epoch)} samples."
        if 0 < epoch < scale
        else ""
    )


def _text(
    measured: tuple[float, float | None, float | None], batch: float, workers: int, supported: int
) -> str:
    """Says what follows for the batch and, unless ``supported`` is 0, for the number of workers."""
    scale, low, high = measured
    between = f" ({_round(low or 0.0)} to {_round(high) if high is not None else 'unknown'})"
    told = (
        f"The gradient noise scale is about {_round(scale)} samples{between}, and a step has"
        f" {batch:,.0f}."
    )
    if scale < batch:
        more = ": more workers pay off only if each takes a smaller part of this batch"
        return (
            f"{told} A larger batch would mostly average noise that does not matter any more"
            f"{more * bool(supported)}."
        )
    more = (
        f": about {_round(supported)} workers, if each keeps the {batch / workers:,.0f} samples that"
        " it has now (a larger `batch_size`, or `--batch per-worker`)"
    )
    rates = _rates(scale, batch)
    return (
        f"{told} Batches up to that size are worth it{more * bool(supported)}. A learning rate that"
        f" suits this batch would be multiplied there by {_round(rates['linear'])} (linear scaling,"
        f" for SGD), {_round(rates['square_root'])} (square root, for Adam and the like) or"
        f" {_round(rates['noise_scale'])} (by the noise scale, for SGD). The noise scale grows"
        " while a model learns."
    )


def _round(value: float) -> str:
    """Returns the value with two digits: more would be noise. Small whole numbers have only one."""
    return f"{float(f'{value:.2g}'):,.{0 if value >= 10 or isinstance(value, int) else 1}f}"
