"""The table of rules: how operations act on rows and on partial values."""

from __future__ import annotations

from syrtos.keras.tensorflow.partition.rules import (
    elementwise,
    indexing,
    lists,
    normalization,
    products,
    random,
    reductions,
    rowwise,
    shapes,
    slices,
)
from syrtos.keras.tensorflow.partition.rules.registry import TABLE

__all__ = [
    "TABLE",
    "elementwise",
    "indexing",
    "lists",
    "normalization",
    "products",
    "random",
    "reductions",
    "rowwise",
    "shapes",
    "slices",
]
