"""Warns of a script's own metrics where workers train alone: their states are added up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras import keras_internals
from syrtos.keras.keras_origin import is_of_keras

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model


class _WarnedMetrics:
    """The classes of metrics of which a line has warned."""

    def __init__(self, session: Session) -> None:
        self.kinds: set[type] = set()


def warn_of_own_metrics(model: Model) -> None:
    """Warns on rank 0, once for each class, of metrics of the script's own in a model.

    States of metrics are added up when workers meet, which is right for sums alone.
    """
    place = world.current().world
    if place.rank or place.size == 1:
        return
    warned = world.part(_WarnedMetrics).kinds
    metrics = [*model.metrics, *keras_internals.compiled_parts(model)]
    for kind in {type(metric): None for metric in metrics if hasattr(metric, "update_state")}:
        if is_of_keras(kind) or kind in warned:
            continue
        warned.add(kind)
        print(
            f"syrtos: the states of the metric {kind.__name__} are added up over the workers, which"
            " train alone for some steps: one that is no sum (a maximum, a mean) may be another"
            " number than in one process.",
            file=sys.stderr,
        )
