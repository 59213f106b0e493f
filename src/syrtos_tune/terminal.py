"""A curve as text, for a terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60


def columns(values: Sequence[float], width: int) -> list[float]:
    """Returns at most ``width`` values, each the mean of a part of consecutive ``values``."""
    count = min(width, len(values))
    bounds = [round(k * len(values) / count) for k in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]


def chart(values: Sequence[float], height: int = 6, marked: int | None = None) -> list[str]:
    """Returns lines that show finite ``values`` as columns, scaled from the least to the largest.

    Args:
        marked: the index of a value to which an additional line below points.
    """
    shown = columns(values, _WIDTH)
    low, high = min(shown), max(shown)
    levels = [
        round((value - low) / ((high - low) or 1.0) * (8 * height - 1)) + 1 for value in shown
    ]
    rows = [
        "".join(_BLOCKS[min(max(level - 8 * row, 0), 8)] for level in levels)
        for row in reversed(range(height))
    ]
    labels = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"]
    lines = [f"{label:>9} │{row}" for label, row in zip(labels, rows, strict=True)]
    if marked is not None:
        lines.append(
            " " * (11 + min(math.floor(marked * len(shown) / len(values)), len(shown) - 1)) + "▲"
        )
    return lines
