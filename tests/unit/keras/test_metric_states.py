"""What the source of an `update_state` says about the states of a metric."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from syrtos.keras.metric_states import rules_of

ops: Any = keras.ops
# What attributes hold does not matter here.
State = Any


class Extremes:
    largest: State
    least: State
    both: State

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        y_true = ops.cast(y_true, "float32")
        error = y_true - y_pred
        largest = ops.maximum(ops.max(error), self.largest)
        self.largest.assign(ops.cast(largest, "float32"))
        self.least.assign(min(self.least.value, self.of(error)))
        self.both.assign(ops.max(ops.stack([self.both, ops.max(error)])))

    def of(self, error: Any) -> Any:
        return ops.min(error)


class Set:
    last: State
    moving: State
    ratio: State
    total: State
    count: State

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        self.total.assign_add(ops.sum(y_true))
        self.count.assign(self.count + 1)
        self.ratio.assign(self.total / self.count)
        self.last.assign(ops.mean(y_true))
        self.moving.assign(0.9 * self.moving + 0.1 * ops.mean(y_true))


class Sums:
    total: State
    scaled: State
    helped: State
    twice: State
    tensor: State
    chosen: State

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        total = self.total + ops.sum(y_true)
        self.total.assign(total)
        self.scaled.assign(self.scaled + 2.0 * ops.sum(y_true))
        self.helped.assign(self.more(y_true))
        self.twice.assign(ops.maximum(self.twice, 1.0))
        self.twice.assign_add(1.0)
        self.tensor.assign(ops.add(self.tensor, ops.maximum(y_true, y_pred)))
        found = ops.sum(y_true)
        if y_pred is not None:
            found = self.chosen + found
        self.chosen.assign(found)

    def more(self, y_true: Any) -> Any:
        return self.helped + ops.sum(y_true)


class Inherits(Extremes):
    pass


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        (Extremes, {"largest": "max", "least": "min", "both": "max"}),
        (Inherits, {"largest": "max", "least": "min", "both": "max"}),
        (Set, {"last": "mean", "moving": "mean", "ratio": "mean"}),
        (Sums, {}),
        (keras.metrics.AUC, {}),
    ],
)
def test_rules_are_read_from_what_is_assigned(kind: type, rules: dict[str, str]) -> None:
    assert rules_of(kind) == rules


def test_a_class_without_source_has_sums() -> None:
    made: dict[str, Any] = {}
    exec("class Made:\n    def update_state(self, y): self.last.assign(y)", made)
    assert rules_of(made["Made"]) == {}
