"""A comparison of two runs: the parts that take longer in the second, and by how much.

The comparison says of each change whether it is more than noise. Noise is measured in the runs
themselves. The times of steps are cut into blocks, because steps that follow each other are not
independent. Blocks are drawn with replacement, and the change in percent of the median (of steps)
or mean (of their parts) is computed anew each time: the moving block bootstrap (Künsch 1989,
doi:10.1214/aos/1176347265). The interval is that between which 95 % of the draws lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from syrtos.observe.clock import KINDS
from syrtos.report import steps
from syrtos.report.facts import Facts
from syrtos.report.read import Floats, RunRecord
from syrtos.report.summary import SHARES
from syrtos.report.waterfall import PARTS

_LEAST = 1e-6  # s, of which a clock can tell parts
_DRAWS, _BLOCKS, _FEWEST, _MOST = 1000, 20, 8, 2000


def compare_runs(first: RunRecord, second: RunRecord, facts: tuple[Facts, Facts]) -> Facts:
    """Returns the comparison of two runs whose facts are given."""
    # The first step is left out below: it traces and compiles.
    a, b = (steps.of_rank(run, 0) for run in (first, second))
    rows = [_row("step", "a step (median)", a.wall[1:], b.wall[1:])]
    rows += [
        _row(kind, f"{SHARES[kind]} in a step (mean)", a.of(kind)[1:], b.of(kind)[1:])
        for kind in KINDS
    ]
    one, other = facts
    return {
        "steps": [row for row in rows if row["first_ms"] >= 0.001 or row["second_ms"] >= 0.001],
        "seconds": {part: [one["seconds"][part], other["seconds"][part]] for part in PARTS},
        "rates": [one["samples_per_second"], other["samples_per_second"]],
        "asked": _differing_settings(one, other),
        "logs": _logs(one, other),
        "text": f"{_scripts(one, other)}{_text(rows[0])} {_rates(one, other)}",
    }


def _row(kind: str, words: str, a: Floats, b: Floats) -> dict[str, Any]:
    """Returns the mean milliseconds of both, and the change in percent with its interval.

    For ``step`` the median takes the place of the mean. The interval is None if there are too few
    steps to tell.
    """
    use = np.median if kind == "step" else np.mean
    first, second = (float(use(x)) * 1e3 if len(x) else 0.0 for x in (a, b))
    change = (second / first - 1) * 100 if first > 0 else None
    interval = _interval(a, b, use) if min(len(a), len(b)) >= _FEWEST and first > 0.01 else None
    is_noise = None if interval is None else interval[0] <= 0 <= interval[1]
    return {
        "kind": kind,
        "words": words,
        "first_ms": first,
        "second_ms": second,
        "change": change,
        "interval": interval,
        "is_noise": is_noise,
    }


def _interval(a: Floats, b: Floats, use: Any) -> list[float]:
    """Returns the 95 % interval of the change in percent."""
    # A fixed seed: two runs are compared with the same result each time.
    random = np.random.default_rng(0)
    firsts, seconds = (_draws(_thin_out(values, use), use, random) for values in (a, b))
    low, high = np.percentile((seconds / np.maximum(firsts, _LEAST) - 1) * 100, [2.5, 97.5])
    return [float(low), float(high)]


def _thin_out(values: Floats, use: Any) -> Floats:
    """Returns at most ``_MOST`` numbers: more are summed up by ``use`` in consecutive groups."""
    return (
        values
        if len(values) <= _MOST
        else np.array([use(group) for group in np.array_split(values, _MOST)])
    )


def _draws(values: Floats, use: Any, random: np.random.Generator) -> Floats:
    size = max(len(values) // _BLOCKS, 1)
    starts = random.integers(0, len(values) - size + 1, (_DRAWS, -(-len(values) // size)))
    picked = (starts[:, :, None] + np.arange(size)).reshape(_DRAWS, -1)
    return use(values[picked], axis=1)


def _differing_settings(one: Facts, other: Facts) -> list[list[Any]]:
    """Returns the settings that differ between the runs: name, first, second."""
    sides: list[dict[str, Any]] = []
    for facts in (one, other):
        run = facts["run"]
        sides.append(
            {
                "workers": run["workers"],
                "hosts": run["hosts"],
                "script": run["script"],
                "arguments": " ".join(run["arguments"]),
                **run["options"],
            }
        )
        sides[-1] |= {f"version of {name}": version for name, version in run["versions"].items()}
    names = dict.fromkeys([*sides[0], *sides[1]])
    return [
        [name, sides[0].get(name), sides[1].get(name)]
        for name in names
        if sides[0].get(name) != sides[1].get(name)
    ]


def _logs(one: Facts, other: Facts) -> list[list[Any]]:
    """Returns the last value of each metric: name, first, second."""
    ends = [
        {
            name: (curve["epochs"] or curve["within"])[-1][1]
            for name, curve in f["curves"]["metrics"].items()
            if curve["epochs"] or curve["within"]
        }
        for f in (one, other)
    ]
    return [
        [name, ends[0].get(name), ends[1].get(name)] for name in dict.fromkeys([*ends[0], *ends[1]])
    ]


def _scripts(one: Facts, other: Facts) -> str:
    """Returns a sentence about the scripts, where they are not the same."""
    names = one["run"]["script"], other["run"]["script"]
    return f"The runs are of different scripts: {names[0]} and {names[1]}. " * (
        names[0] != names[1]
    )


def _rates(one: Facts, other: Facts) -> str:
    """Returns a sentence about the speed of all of training.

    It differs from that of the median step if there are steps of several kinds.
    """
    return (
        f"All in all {one['samples_per_second']:,.0f} and {other['samples_per_second']:,.0f}"
        f" {other['rate_of']} per second of training."
    )


def _text(row: dict[str, Any]) -> str:
    """Returns a sentence about the step."""
    if row["change"] is None or row["interval"] is None:
        return "One of the runs has too few training steps to compare them."
    low, high = row["interval"]
    how = "more" if row["change"] > 0 else "less"
    if row["is_noise"]:
        return (
            f"Steps take {row['first_ms']:.2f} and {row['second_ms']:.2f} ms: the difference of"
            f" {row['change']:+.1f} % is within the noise ({low:+.1f} to {high:+.1f} %)."
        )
    return (
        f"Steps of the second run take {abs(row['change']):.1f} % {how} time: {row['first_ms']:.2f}"
        f" and {row['second_ms']:.2f} ms (95 % interval: {low:+.1f} to {high:+.1f} %)."
    )
