"""Rules of branches and loops: their graphs are partitioned like the one around them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from syrtos.keras.tensorflow import tf_internals_emission
from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.partition.rules.lists import same_known
from syrtos.keras.tensorflow.partition.values import (
    REPLICATED,
    Placement,
    Replicated,
    RowPlacement,
    Value,
)
from syrtos.keras.tensorflow.tf_internals_emission import TracedGraph

# A loop's placements are joined so often; then what still changes is made whole.
_ROUNDS = 8


class GraphEmitter(Emitter, abc.ABC):
    """An emitter of whole graphs, such as the body of a loop."""

    @abc.abstractmethod
    def child(self, report: Report | None = None) -> GraphEmitter:
        """Returns an emitter for a graph inside of this one."""

    @abc.abstractmethod
    def of_whole_batch(self) -> GraphEmitter:
        """Returns an emitter for a branch in which each worker has all rows."""

    @abc.abstractmethod
    def run_graph(self, graph: TracedGraph, inputs: Sequence[Value]) -> list[Value]:
        """Emits a graph's operations into the current graph; returns its outputs."""


def _branch(emitter: GraphEmitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    graphs = [
        tf_internals_emission.graph_of_function(op, name) for name in ("then_branch", "else_branch")
    ]
    return _branches(emitter, values, graphs, _by_condition)


def _case(emitter: GraphEmitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    graphs = tf_internals_emission.graphs_of_functions(op, "branches")
    return _branches(emitter, values, graphs, tf.switch_case)


def _by_condition(which: tf.Tensor, branches: Sequence[Callable[[], Any]]) -> Any:
    condition = which if which.dtype == tf.bool else tf.not_equal(which, tf.zeros_like(which))
    return tf.cond(condition, *branches)


def _branches(
    emitter: GraphEmitter,
    values: list[Value],
    found_graphs: Sequence[TracedGraph | None],
    choose: Callable[..., Any],
) -> list[Value] | None:
    graphs = [graph for graph in found_graphs if graph is not None]
    if len(graphs) < len(found_graphs):
        return None
    which = emitter.whole(values[0])
    inputs = emitter.reduce_partial(values[1:])
    found = [_trial_values(emitter, graph, inputs) for graph in graphs]
    placements = [_joined_branches(emitter, same) for same in zip(*found, strict=True)]

    def emit_branch(graph: TracedGraph) -> list[tf.Tensor]:
        child = emitter.child()
        outputs = child.run_graph(graph, [_without_gathered(value) for value in inputs])
        return [child.at(v, p) for v, p in zip(outputs, placements, strict=True)] or [
            tf.constant(0)
        ]

    made = choose(which, [lambda graph=graph: emit_branch(graph) for graph in graphs])
    made = made if isinstance(made, list | tuple) else [made]
    return [
        Value(tensor, placement, element_dtype=like.element_dtype)
        for tensor, placement, like in zip(made, placements, found[0], strict=False)
    ]


def _joined_branches(emitter: GraphEmitter, found: Sequence[Value]) -> Placement:
    placements = {value.placement for value in found}
    if len(placements) == 1:
        return placements.pop()
    rows = {value.rows for value in found if value.rows}
    # Where one branch gives rows, those of another are cut; other mixtures are made whole.
    if len(rows) == 1 and not any(value.is_partial for value in found):
        (place,) = rows
        if all(value.rows or _has_rows(emitter, value, place) for value in found):
            return place
    return REPLICATED


def _has_rows(emitter: GraphEmitter, value: Value, rows: RowPlacement) -> bool:
    """Returns whether it is known that a whole value has the rows of the batch in a dimension."""
    if value.tensor.dtype == tf.variant:  # a list, whose elements are cut
        return True
    dims = emitter.dims(value)
    if dims is None or rows.dim >= len(dims):
        return False
    return dims[rows.dim] == emitter.share.size(rows.each)


def _trial_values(
    emitter: GraphEmitter, graph: TracedGraph, inputs: Sequence[Value]
) -> list[Value]:
    """Returns a graph's outputs, by emitting it where nothing is kept."""
    with tf_internals_emission.scratch_graph():
        child = emitter.child(Report())
        return child.run_graph(graph, [_without_gathered(value) for value in inputs])


def _without_gathered(value: Value) -> Value:
    # What is gathered inside of a graph can't be used outside of it.
    return dataclasses.replace(value)


def _loop(emitter: GraphEmitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    body = tf_internals_emission.graph_of_function(op, "body")
    condition = tf_internals_emission.graph_of_function(op, "cond")
    if body is None or condition is None:
        return None
    inputs = emitter.reduce_partial(values)
    loop = _Loop(emitter, body, condition, inputs)
    loop.find_placements()
    # Exchanges have the same order on all workers: those of two iterations can't be made at once.
    return loop.emit(1 if loop.exchanges else op.get_attr("parallel_iterations"))


class _Loop:
    """A loop whose variables have placements that its body keeps.

    Attributes:
        exchanges: whether its body or its condition exchanges something, as far as
            `find_placements` has seen.
    """

    def __init__(
        self, emitter: GraphEmitter, body: TracedGraph, condition: TracedGraph, inputs: list[Value]
    ) -> None:
        self._emitter = emitter
        self._body = body
        self._condition = condition
        self._inputs = inputs
        self.exchanges = False
        # What the body gives back as it got it is no variable: it is used from outside.
        pairs = zip(body.inputs, body.outputs, strict=True)
        self._changing = [i for i, (got, given) in enumerate(pairs) if got is not given]
        self._placements: dict[int, Placement] = {i: inputs[i].placement for i in self._changing}
        self._known = {i: inputs[i].element_known for i in self._changing}
        self._are_empty = {i for i in self._changing if inputs[i].is_empty_list}

    def find_placements(self) -> None:
        """Finds placements that the body keeps: it is emitted on trial until they stay the same."""
        fixed: set[int] = set()
        for _ in range(_ROUNDS):
            after = self._values_after_body()
            before, known = dict(self._placements), dict(self._known)
            for i in self._changing:
                if i not in fixed:
                    self._placements[i] = self._join_placements(i, after[i])
                if self._placements[i] == REPLICATED != before[i]:
                    fixed.add(i)
                is_kept = i in self._are_empty or same_known(known[i], after[i].element_known)
                self._known[i] = after[i].element_known if is_kept else None
            self._are_empty = set()
            if before == self._placements and _same_entries(known, self._known):
                return
        self._placements = dict.fromkeys(self._changing, REPLICATED)
        self._known = dict.fromkeys(self._changing)
        self.exchanges = True

    def _join_placements(self, index: int, after: Value) -> Placement:
        """Returns the placement of a variable that has one before the body and one after it."""
        before, start = self._placements[index], self._inputs[index]
        if before == after.placement:
            return before
        if isinstance(before, Replicated):
            rows = after.rows
            is_kept = rows is None or _has_rows(self._emitter, start, rows)
            return after.placement if is_kept else REPLICATED
        rows = before if isinstance(before, RowPlacement) else None
        if after.is_replicated and (rows is None or _has_rows(self._emitter, after, rows)):
            return before
        return REPLICATED

    def emit(self, parallel: int) -> list[Value]:
        """Emits the loop; returns the values of its variables at its end."""
        start = [self._emitter.at(self._inputs[i], self._placements[i]) for i in self._changing]
        ended = tf.while_loop(
            lambda *now: self._continues(now),
            lambda *now: self._step(now),
            start,
            shape_invariants=[self._shape(i) for i in self._changing],
            parallel_iterations=parallel,
        )
        results = list(self._inputs)
        for i, tensor in zip(self._changing, ended, strict=True):
            results[i] = self._value(i, tensor)
        return results

    def _values_after_body(self) -> dict[int, Value]:
        with tf_internals_emission.scratch_graph():
            now = [
                tf_internals_emission.placeholder_like(self._inputs[i].tensor, self._shape(i))
                for i in self._changing
            ]
            report = Report()
            child = self._child(report)
            outputs = child.run_graph(self._body, self._values(now))
            # Before they are brought to their placements, which reduces them.
            found = {i: _without_gathered(outputs[i]) for i in self._changing}
            for i in self._changing:
                child.at(outputs[i], self._placements[i])
            (goes_on,) = child.run_graph(self._condition, self._values(now))
            child.whole(goes_on)
            self.exchanges = report.exchanges
            return found

    def _child(self, report: Report | None = None) -> GraphEmitter:
        made = self._emitter.child(report)
        made.defers_sums = True
        return made

    def _values(self, now: Sequence[tf.Tensor]) -> list[Value]:
        values = [_without_gathered(value) for value in self._inputs]
        for i, tensor in zip(self._changing, now, strict=True):
            values[i] = self._value(i, tensor)
        return values

    def _value(self, index: int, tensor: tf.Tensor) -> Value:
        before = self._inputs[index]
        return Value(
            tensor,
            self._placements[index],
            is_empty_list=index in self._are_empty,
            element_dtype=before.element_dtype,
            element_known=self._known[index],
        )

    def _shape(self, index: int) -> tf.TensorShape:
        shape = self._body.inputs[index].shape
        placement = self._placements[index]
        if shape.rank is None or not isinstance(placement, RowPlacement) or self._is_list(index):
            return shape
        sizes = shape.as_list()
        sizes[placement.dim] = None
        return tf.TensorShape(sizes)

    def _is_list(self, index: int) -> bool:
        return self._inputs[index].tensor.dtype == tf.variant

    def _continues(self, now: Sequence[tf.Tensor]) -> tf.Tensor:
        child = self._child()
        (found,) = child.run_graph(self._condition, self._values(now))
        return child.whole(found)

    def _step(self, now: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        child = self._child()
        outputs = child.run_graph(self._body, self._values(now))
        made = [child.at(outputs[i], self._placements[i]) for i in self._changing]
        for i, tensor in zip(self._changing, made, strict=True):
            if not self._is_list(i):
                tensor.set_shape(self._shape(i))
        return made


def _same_entries(one: dict[int, Any], other: dict[int, Any]) -> bool:
    return all(one[i] is other[i] is None or same_known(one[i], other[i]) for i in one)


RULES: dict[str, Callable[[Any, tf.Operation, list[Value]], list[Value] | None]] = {
    **dict.fromkeys(("If", "StatelessIf"), _branch),
    **dict.fromkeys(("Case", "StatelessCase"), _case),
    **dict.fromkeys(("While", "StatelessWhile"), _loop),
}
