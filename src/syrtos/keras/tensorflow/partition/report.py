"""Counts that are noted of a program while it is partitioned."""

from __future__ import annotations

import collections
import dataclasses

import tensorflow as tf


@dataclasses.dataclass
class Report:
    """Counts of a partitioned program.

    Attributes:
        reductions: exchanges that reduce partial values.
        gathers: exchanges that gather rows.
        whole: operations on rows that every worker computes whole, by their types.
        split: number of operations that are computed on rows.
    """

    reductions: int = 0
    gathers: int = 0
    whole: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    split: int = 0

    def note_whole(self, operation: tf.Operation) -> None:
        """Notes an operation on rows that every worker computes whole."""
        self.whole[operation.type] += 1
