"""Losses, metrics and the learning rate over the training steps of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from syrtos.report.read import RunRecord

_RATE = "learning_rate"
_RATES = (_RATE, "lr")  # Keras 2 logs it by the second name


def describe_curves(run: RunRecord) -> dict[str, Any]:
    """Returns the points of each metric, the learning rate, and the ends of epochs.

    Each metric has points within epochs and at their ends. Within an epoch a point is the mean
    since the epoch began, as Keras shows it.
    """
    # By step: of those that were trained twice the second time counts.
    within, ends = (
        list({point["step"]: point for point in _points(run, name)}.values())
        for name in ("curve", "epochs")
    )
    names = list(dict.fromkeys(name for point in ends or within for name in point["logs"]))
    return {
        "metrics": {
            name: {"within": _series(within, name), "epochs": _series(ends, name)}
            for name in names
            if name not in _RATES
        },
        "learning_rate": [
            [point["step"], rate]
            for point in sorted([*within, *ends], key=lambda point: point["step"])
            if (rate := _rate(point)) is not None
        ],
        "epochs": [
            {"step": point["step"], "epoch": point["epoch"], "time": point["time"]}
            for point in ends
        ],
    }


def _points(run: RunRecord, name: str) -> Iterator[dict[str, Any]]:
    for number, generation in enumerate(run.generations):
        kept = run.step_kept(number)
        for line in getattr(generation, name):
            step = generation.trained_before + _steps_made(line)
            if kept is None or step <= kept:
                yield {
                    "step": step,
                    "epoch": line.get("epoch"),
                    "time": line.get("time"),
                    "logs": line.get("logs") or {},
                    _RATE: line.get(_RATE),
                }


def _steps_made(line: Mapping[str, Any]) -> int:
    """Returns the number of steps of the process so far."""
    # older versions have written down steps of the `fit`, or epochs alone
    return int(
        next((line[name] for name in ("trained", "step", "epoch") if line.get(name) is not None), 0)
    )


def _series(points: Sequence[Mapping[str, Any]], name: str) -> list[list[float | None]]:
    return [
        [point["step"], _finite(point["logs"][name])] for point in points if name in point["logs"]
    ]


def _rate(point: Mapping[str, Any]) -> float | None:
    return _finite(
        point[_RATE]
        if point[_RATE] is not None
        else next((point["logs"][name] for name in _RATES if name in point["logs"]), None)
    )


def _finite(value: Any) -> float | None:
    """Returns the value as a float; None if it is not finite, for JSON has no NaN."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
