"""Facts that are noted of a program while it is partitioned."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path

import tensorflow as tf

from syrtos.keras.split.script_lines import line_of_script

_TENSORFLOW = str(Path(tf.__file__).parent)
_NAMED = 5  # so many operations are named in the record of a run


@dataclasses.dataclass
class Report:
    """Facts of a partitioned program.

    Attributes:
        reductions: exchanges that reduce partial values.
        gathers: exchanges that gather rows.
        whole: operations on rows that every worker computes whole, such as ``TopKV2 in train.py,
            line 7``, with how often they were emitted.
        split: number of operations that are computed on rows.
        uncompiled: operations of the script that XLA can't compile, where a step is compiled.
    """

    reductions: int = 0
    gathers: int = 0
    whole: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    split: int = 0
    uncompiled: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    @property
    def exchanges(self) -> bool:
        """True if the program has exchanges."""
        return bool(self.reductions or self.gathers)

    def note_whole(self, operation: tf.Operation) -> None:
        """Notes an operation on rows that every worker computes whole."""
        self.whole[place_of(operation)] += 1

    def note_uncompiled(self, operation: tf.Operation) -> None:
        """Notes an operation that XLA can't compile; those of syrtos, as exchanges, have no line."""
        if " in " in (place := place_of(operation)):
            self.uncompiled[place] += 1

    def describe_whole(self) -> str:
        """Returns the operations that every worker computes whole, as a text; empty without any."""
        return _describe(self.whole)

    def describe_uncompiled(self) -> str:
        """Returns the operations that XLA can't compile, as a text; empty without any."""
        return _describe(self.uncompiled)


def _describe(places: collections.Counter[str]) -> str:
    named = [name for name, _ in places.most_common(_NAMED)]
    more = len(places) - len(named)
    return ", ".join(named) + f" and {more} more" * bool(more)


def place_of(operation: tf.Operation) -> str:
    """Returns an operation with the line of the script that it comes from, if that is known."""
    frames = [(frame.filename, frame.lineno) for frame in reversed(operation.traceback or ())]
    line = line_of_script(frames, _TENSORFLOW, "tensorflow")
    return f"{operation.type} in {line}" if line else operation.type
