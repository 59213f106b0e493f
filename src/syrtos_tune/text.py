"""The results about batches and rates, as sentences and as facts for JSON and the page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from importlib import resources
from typing import Any

from syrtos.report.page import standalone
from syrtos_tune.batch import BatchSearch, milliseconds
from syrtos_tune.memory import size
from syrtos_tune.rates import Rates
from syrtos_tune.search import MIN_STEPS, BatchTrial

_NOISY = 0.2  # of the median
# Optimizers whose update does not grow with the gradient; names of Keras.
_ADAPTIVE = {
    "Adam",
    "AdamW",
    "Nadam",
    "Adamax",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Lion",
    "Lamb",
    "Adafactor",
    "Ftrl",
}


# -- batches ---------------------------------------------------------------------------------------


def of_batches(result: BatchSearch) -> list[str]:
    """Returns sentences about a search; the first says what to do."""
    found = result.found
    if found is None:
        tried = min(result.tried, key=lambda one: one.batch)
        return [f"No batch size fits: one of {tried.batch:,} {tried.failed}."]
    speeds = {one.batch: one.speed for one in result.tried if not one.failed}
    part = speeds[found.recommended] / speeds[found.fastest]
    why = (
        f"the larger ones that were tried leave fewer than {MIN_STEPS} updates in an epoch, which"
        f" trains on {result.rows:,} rows."
        if found.capped
        else (
            "it is the smallest within 5 %: a larger batch makes fewer updates from the same data,"
            " and gains no speed."
        )
    )
    return [
        (
            "Recommended: a global batch of"
            f" {found.recommended:,}.{_gain(result, found.recommended, speeds)}"
        ),
        *_updates(result, found.recommended),
        (
            f"The fastest is {found.fastest:,} ({speeds[found.fastest]:,.0f} samples/s)."
            f" {found.recommended:,} reaches {part:.0%} of that; {why}"
        ),
        f"The largest that was seen to fit is {found.largest:,}. {found.why}{_would_fit(result)}",
        *_noise(result),
        *_rates(result, found.recommended),
    ]


def _gain(result: BatchSearch, batch: int, speeds: Mapping[int, float]) -> str:
    """Returns a sentence that compares a batch with the script's own, if that was measured."""
    if batch == result.own:
        return " It is the script's own."
    if result.own not in speeds:
        return ""
    times = speeds[batch] / speeds[result.own]
    return (
        f" Samples per second are {times:.2f} times those of the script's own batch of"
        f" {result.own:,}."
    )


def _updates(result: BatchSearch, batch: int) -> list[str]:
    """Returns sentences about the effect of another batch on learning.

    They also say where the useful batch is measured.
    """
    support = (
        "`syrtos report` of a run with several workers estimates how large a batch the training can"
        " use: the gradient noise scale."
    )
    if batch <= result.own or not result.own:
        return [support]
    now, then = (math.ceil(result.rows / each) for each in (batch, result.own))
    count = (
        f"An epoch has {now:,} updates in place of {then:,}"
        if result.rows
        else f"An epoch has {batch / result.own:.3g} times fewer updates"
    )
    return [f"{count}: training may need more epochs to become as good. {support}"]


def _would_fit(result: BatchSearch) -> str:
    """Returns a sentence on the largest batch that would fit, by the growth of the host's memory.

    It is empty if the search reached the end of memory, or if batches are on an accelerator.
    """
    good = sorted((one for one in result.tried if not one.failed), key=lambda one: one.batch)
    if len(good) < 2 or any(one.failed for one in result.tried) or any(good[-1].device):
        return ""
    slope = (sum(good[-1].peak) - sum(good[0].peak)) / (good[-1].batch - good[0].batch)
    room = result.usable - sum(good[-1].peak)
    if slope <= 0 or room <= 0:
        return ""
    return (
        f" By their growth of {size(slope)} a row, about {_round(good[-1].batch + room / slope):,}"
        " rows would fit."
        if slope >= 1e6
        else ""
    )


def _round(count: float) -> int:
    """Returns a number rounded to two significant digits."""
    return int(float(f"{count:.2g}"))


def _noise(result: BatchSearch) -> list[str]:
    """Returns sentences about differences between steps, repeated trials and repeated data."""
    good = [one for one in result.tried if not one.failed]
    noise = statistics.median(one.spread for one in good)
    sentences = [
        f"Speeds are of the median step; the middle half of the steps lies within {noise:.0%} of it"
        " (median of the trials)."
    ]
    if noise > _NOISY:
        sentences[0] += (
            " That is much: other programs may be busy on this machine. Repeat the search when it"
            " is calm, or with more `--steps`."
        )
    if twice := [f"{one.batch:,}" for one in good if one.runs > 1]:
        sentences.append(
            f"{' and '.join(twice)} ran twice, as the first trial stood out or its steps differed"
            " much: the median is of both."
        )
    if repeated := [one for one in good if one.note]:
        least = min(repeated, key=lambda one: one.batch)
        sentences.append(
            f"For batches of {least.batch:,} or more the data is too small for an epoch of some"
            f" steps: {least.note}."
        )
    return sentences


def _rates(result: BatchSearch, batch: int) -> list[str]:
    """Returns sentences about the script's learning rate at another batch.

    They give it by the linear and the square-root rule.
    """
    if batch == result.own or not result.own:
        return []
    factor = batch / result.own
    adaptive = result.optimizer in _ADAPTIVE
    mine = f" The script trains with {result.optimizer}."
    root = math.sqrt(factor)
    linear, by_root = _describe_rate_change(result, factor), _describe_rate_change(result, root)
    return [
        (
            f"Learning rate, linear rule: × {factor:.3g}{linear}. For SGD, with or without"
            " momentum, and with some epochs of warm-up (Goyal et al.,"
            f" arXiv:1706.02677).{mine * (not adaptive)}"
        ),
        (
            f"Learning rate, square-root rule: × {root:.3g}{by_root}. For Adam and its like, whose"
            " updates do not grow with the gradient (Malladi et al.,"
            f" arXiv:2205.10287).{mine * adaptive}"
        ),
    ]


def _describe_rate_change(result: BatchSearch, factor: float) -> str:
    return f" ({result.rate:.3g} becomes {result.rate * factor:.3g})" if result.rate else ""


def table(result: BatchSearch) -> list[tuple[str, ...]]:
    """Returns rows about all batches, the smallest first.

    The columns are: batch, samples/s, ms a step, quartiles, memory of a worker, accelerator, note.
    """
    return [_row(one, result) for one in sorted(result.tried, key=lambda one: one.batch)]


def _row(one: BatchTrial, result: BatchSearch) -> tuple[str, ...]:
    if one.failed:
        return (f"{one.batch:,}", "", "", "", "", "", one.failed)
    found, first, third = result.found, *(milliseconds(each) for each in one.quartiles)
    names = {
        "the script's own": result.own,
        "recommended": found and found.recommended,
        "fastest": found and found.fastest,
        "largest": found and found.largest,
    }
    notes = [name for name, batch in names.items() if batch == one.batch]
    device = size(max(one.device)) if any(one.device) else ""
    return (
        f"{one.batch:,}",
        f"{one.speed:,.0f}",
        f"{one.step * 1e3:.3g}",
        f"{first} to {third}",
        size(max(one.peak)),
        device,
        ", ".join(notes),
    )


def batch_facts(result: BatchSearch) -> dict[str, Any]:
    """Returns the facts about a search for JSON and the page."""
    found = result.found
    return {
        "kind": "batch",
        "sentences": of_batches(result),
        "own": result.own,
        "rows": result.rows or None,
        "workers": result.workers,
        "largest": found and found.largest,
        "fastest": found and found.fastest,
        "recommended": found and found.recommended,
        "optimizer": result.optimizer,
        "learning_rate": result.rate,
        "machine_bytes": result.machine,
        "tried": [_facts(one) for one in result.tried],
    }


def _facts(one: BatchTrial) -> dict[str, Any]:
    if one.failed:
        return {"batch": one.batch, "failed": one.failed, "for_memory": one.for_memory}
    return {
        "batch": one.batch,
        "samples_per_second": one.speed,
        "ms": one.step * 1e3,
        "quartiles_ms": [each * 1e3 for each in one.quartiles],
        "steps": len(one.seconds),
        "trials": one.runs,
        "peak_bytes": max(one.peak),
        "device_bytes": max(one.device),
        "note": one.note,
    }


# -- rates -----------------------------------------------------------------------------------------


def of_rates(rates: Rates, own: float | None, highest: float) -> list[str]:
    """Returns sentences about a range test up to rate ``highest``; the first says what to do."""
    if rates.recommended is None or rates.steepest is None or rates.least is None:
        above = (
            [f"The script's own rate is {own:.3g}, above all that were tested: raise `--to`."]
            if own and own > highest
            else []
        )
        return ["No learning rate can be recommended.", *above, rates.reason]
    mine = f" The script's own is {own:.3g}." if own else ""
    end = f" The test ended at {highest:.3g}: the loss diverged." if rates.diverged else ""
    high, low = rates.fall
    little = (
        f"The smoothed loss fell by little in the test, from {high:.4g} to {low:.4g}: the rate is a"
        " rough guess. A test with more `--steps` can say more."
    )
    return [
        (
            f"Recommended{', with little confidence' * rates.is_little}: a learning rate of"
            f" {rates.recommended:.2g}.{mine}"
        ),
        *([little] if rates.is_little else []),
        rates.reason,
        (
            f"Steepest descent at {rates.steepest:.3g}; least loss at {rates.least:.3g}, a tenth of"
            f" which is {rates.tenth:.3g}; highest stable rate {rates.stable:.3g}.{end}"
        ),
        (
            "It holds for this batch size and this optimizer. A schedule may begin there; a"
            " one-cycle schedule may peak between it and the least loss."
        ),
    ]


def rate_facts(found: Mapping[str, Any], rates: Rates) -> dict[str, Any]:
    """Returns the facts about a range test for JSON and the page.

    Args:
        found: the facts that the trial has written.
    """
    return {
        "kind": "lr",
        "sentences": of_rates(rates, found["rate"], max(found["rates"])),
        "recommended": rates.recommended,
        "steepest": rates.steepest,
        "least": rates.least,
        "least_tenth": rates.tenth,
        "stable": rates.stable,
        "diverged": rates.diverged,
        "optimizer": found["optimizer"],
        "own": found["rate"],
        "rates": found["rates"],
        "losses": found["losses"],
        "smoothed": rates.smoothed,
    }


# -- the page --------------------------------------------------------------------------------------


def page(facts: Mapping[str, Any], title: str, about: str) -> str:
    """Returns an HTML file that needs no other file."""
    code = (resources.files("syrtos_tune") / "static" / "tune.js").read_text(encoding="utf-8")
    return standalone(title, {**facts, "title": title, "about": about}, "SyrtosTune.whole", code)
