"""How a state of a script's own metric becomes equal on all workers.

Keras declares every state of a metric to be a sum, which counters and totals are. A state may also be a maximum (`self.worst.assign(ops.maximum(self.worst,
ops.max(error)))`), or a mean that each batch sets anew or moves by a rate; added up over workers, these would be another number than one process has.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Literal

import numpy as np

from syrtos.comm import world
from syrtos.comm.communicator import Array
from syrtos.keras import metric_source, state
from syrtos.keras.patching import Method

Rule = Literal["sum", "mean", "max", "min"]

# By identity, since a metric need not be hashable.
_metrics: dict[int, weakref.ref[Any]] = {}
_told: set[type] = set()


def noting(original: Method) -> Method:
    """Around the method by which a metric makes a state."""

    def add(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in _metrics and any(rule != "sum" for rule in metric_source.rules_of(type(self)).values()):
            key = id(self)
            _metrics[key] = weakref.ref(self, lambda _: _metrics.pop(key, None))
        return original(self, *args, **kwargs)

    return add


def rule_of(variable: Any) -> Rule | None:
    """How the values of the workers become one, of a variable whose aggregation is a sum.

    Returns:
        ``sum``: what each has added is added; ``mean``: weighted by samples; ``max`` or ``min``: of all; None: they are equal.
    """
    found = _state_of(variable) if _metrics else None
    if found is None:
        return "sum"
    metric, name = found
    rule = metric_source.rules_of(type(metric))[name]
    if rule == "unknown":
        _tell(type(metric))
        return "sum"
    if rule in ("mean", "same"):
        whole = "float" not in state.dtype_name(variable)  # of which there is no mean
        return "mean" if not whole else None if rule == "same" else "sum"
    return rule


def in_own_row(value: Array, rank: int, size: int) -> Array:
    """A row for each worker, of which the others' are zeros: the sum over the workers has the values of all.

    Args:
        value: of any shape.
        rank, size: of the workers that add.

    Returns:
        An array of ``(size, *value.shape)``.
    """
    rows = np.zeros((size, *np.shape(value)), np.asarray(value).dtype)
    rows[rank] = value
    return rows


def extreme(rows: Array, rule: str | None) -> Array:
    """The largest or the least of the rows, by ``max`` or ``min``."""
    return rows.max(axis=0) if rule == "max" else rows.min(axis=0)


def _state_of(variable: Any) -> tuple[Any, str] | None:
    """The metric whose state a variable is, and the attribute, if its class has a rule for it."""
    for metric in [known() for known in list(_metrics.values())]:
        for name in metric_source.rules_of(type(metric)):
            held = getattr(metric, name, None)
            if hasattr(held, "aggregation") and state.identity(held) == state.identity(variable):
                return metric, name
    return None


def _tell(kind: type) -> None:
    place = world.current().world
    if kind in _told or place.rank or place.size == 1:
        return
    _told.add(kind)
    names = ", ".join(f"`{name}`" for name, rule in metric_source.rules_of(kind).items() if rule == "unknown")
    print(
        f"syrtos: these states of the metric {kind.__name__} may be other numbers than in one process, up to {place.size} times as large: {names}. Its "
        "`update_state` does not show that they are sums, means or extremes of rows, so what each worker adds is added up, as Keras declares. "
        "docs/how-it-works.md (Metrics of your own) has the forms that are exact.",
        file=sys.stderr,
    )
