"""What the source of an `update_state` says about the states of a metric."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from keras import metrics

from syrtos.keras.metric_source import rules_of

# Nothing here is called.
ops: Any = keras.ops


class States(metrics.Metric):
    """Any attribute may be a state."""

    def __getattr__(self, name: str) -> Any: ...


class Extremes(States):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y_true = ops.cast(y_true, "float32")
        error = self.error(y_true, y_pred)
        largest = ops.maximum(ops.max(error), self.largest)
        self.largest.assign(ops.cast(largest, "float32"))
        self.least.assign(min(self.least.value, float(error.min())))
        self.stacked.assign(ops.max(ops.stack([self.stacked, ops.max(error)])))
        self.listed.assign(ops.reduce_max([self.listed, ops.reduce_max(error)]))
        self.by_class.assign(ops.maximum(self.by_class, ops.max(error, axis=0)))
        self.named.assign(value=ops.maximum(x1=self.named, x2=ops.max(error)))
        self.positive.assign(ops.maximum(self.positive, ops.maximum(ops.max(error), 0.0)))

    def error(self, y_true: Any, y_pred: Any) -> Any:
        return ops.abs(y_true - y_pred)


class Means(States):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        rate = 0.1
        self.total.assign_add(ops.sum(y_true))
        self.count.assign(self.count + 1)
        self.last.assign(2.0 * ops.mean(y_true) - 1.0)
        self.moving.assign(0.9 * self.moving + 0.1 * ops.mean(y_true))
        self.nearing.assign(self.nearing + self.rate * (ops.mean(y_true) - self.nearing))
        self.leaving.assign(self.leaving - rate * (self.leaving - ops.mean(y_true)))
        self.called.assign(ops.add(ops.multiply(0.9, self.called), ops.multiply(0.1, ops.mean(y_true))))
        self.added.assign_add(0.1 * (ops.mean(y_true) - self.added))
        self.of_means.assign_add(ops.mean(ops.sum(ops.square(y_true - y_pred), axis=-1)))
        self.of_column.assign(ops.mean(y_pred[:, 1]))
        self.ratio.assign(self.total / self.count)
        self.clipped.assign(ops.maximum(self.total / self.count, 0.0))


class Sums(States):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        def weighted(value: Any) -> Any:
            return ops.sum(value if sample_weight is None else value * sample_weight)

        total = self.total + ops.sum(y_true)
        self.total.assign(total)
        self.weighted.assign(self.weighted + weighted(y_true))
        self.scaled.assign(self.scaled + 2.0 * self.total + ops.sum(y_true))
        self.less.assign(self.less - ops.sum(y_true))
        self.called.assign(ops.add(self.called, ops.sum(ops.maximum(y_true, y_pred))))
        self.twice.assign(self.twice + ops.sum(y_true))
        self.twice.assign_add(ops.sum(y_pred))
        self.rows.assign_add(ops.shape(y_true)[0])
        for _ in range(len(y_true)):
            self.counted.assign_add(1.0)
        if ops.any(y_true > 0):
            self.batches.assign_add(1.0)


def add_to(metric: Any, value: Any) -> Any:
    return metric.passed + value


class Unknown(States):
    """Values that are a sum, a mean or an extreme of a share alone, and reads that are not to be seen at once."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.rows.assign(ops.shape(y_true)[0])
        self.hits.assign(ops.sum(y_true))
        self.worst_batch.assign(ops.maximum(self.worst_batch, ops.mean(y_true)))
        self.largest_sum.assign(ops.maximum(self.largest_sum, ops.sum(y_true)))
        self.largest_of_last.assign(ops.max(y_true))
        self.decayed.assign(0.9 * self.decayed + ops.sum(y_true))
        self.chosen.assign(ops.where(y_true > self.chosen, y_true, self.chosen))
        most = ops.maximum(self.changed, ops.max(y_true))
        most = ops.maximum(most, y_pred)
        self.changed.assign(most)
        self.current.assign(self.now + ops.mean(y_true))
        self.by_method.assign(self.added(y_true))
        self.either.assign(ops.maximum(self.either, 1.0))
        self.either.assign_add(1.0)
        self.of_columns.assign(ops.maximum(self.of_columns, ops.max(ops.mean(y_true, axis=0))))
        self.scaled.assign(ops.maximum(self.scaled, ops.max(y_true / ops.max(y_pred))))
        self.centred.assign(ops.mean(ops.square(y_true - ops.mean(y_true, axis=0))))
        self.first_rows.assign(ops.mean(y_true[:10]))
        self.running.assign(ops.maximum(self.running, ops.max(ops.cumsum(y_true, axis=0))))
        self.of_largest.assign_add(ops.max(y_true))
        self.per_row.assign(ops.mean(y_true, axis=-1))
        if ops.any(y_true > 0):
            self.at_times.assign(ops.mean(y_true))

    @property
    def now(self) -> Any:
        return self.current

    def added(self, value: Any) -> Any:
        return self.by_method + value


class Hidden(States):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        def more() -> Any:
            return self.nested + ops.mean(y_true)

        self.nested.assign(more())
        self.passed.assign(add_to(self, ops.mean(y_true)))
        self.any.assign(ops.mean(y_true))  # what `add_to` did with the metric is not known


class Helped(States):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.state.assign(0.0)
        self.add(y_true)

    def add(self, value: Any) -> None:
        self.state.assign_add(ops.sum(value))


class Inherits(Extremes):
    pass


class Extends(Extremes):
    def update_state(self, *args: Any, **kwargs: Any) -> None:
        super().update_state(*args, **kwargs)
        self.largest.assign_add(1.0)
        self.own.assign_add(1.0)


LARGEST = dict.fromkeys(("largest", "stacked", "listed", "by_class", "named", "positive"), "max") | {"least": "min"}
MEANS = dict.fromkeys(("last", "moving", "nearing", "leaving", "called", "added", "of_means", "of_column"), "mean")
UNKNOWN = (
    "rows", "hits", "worst_batch", "largest_sum", "largest_of_last", "decayed", "chosen", "changed", "current", "by_method", "either",
    "of_columns", "scaled", "centred", "first_rows", "running", "of_largest", "per_row", "at_times",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        (Extremes, LARGEST),
        (Inherits, LARGEST),
        (Extends, {**LARGEST, "largest": "unknown", "own": "same"}),
        (Means, {**MEANS, "total": "sum", "count": "same", "ratio": "same", "clipped": "same"}),
        (
            Sums,
            dict.fromkeys(
                ("total", "scaled", "less", "called", "twice", "weighted", "rows", "counted", "batches"), "sum"
            ),
        ),
        (Unknown, dict.fromkeys(UNKNOWN, "unknown")),
        (Hidden, dict.fromkeys(("nested", "passed", "any"), "unknown")),
        (Helped, {"state": "unknown"}),
        (metrics.AUC, {}),
    ],
)
def test_rules_are_proven_by_what_is_assigned(kind: type, rules: dict[str, str]) -> None:
    assert rules_of(kind) == rules


def test_a_class_without_source_has_no_rules() -> None:
    made: dict[str, Any] = {}
    exec("class Made:\n    def update_state(self, y): self.last.assign(y)", made)
    assert rules_of(made["Made"]) == {}
