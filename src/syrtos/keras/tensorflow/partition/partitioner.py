"""The program of the whole batch, emitted for this worker's rows."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from syrtos.keras.tensorflow import tf_internals_emission
from syrtos.keras.tensorflow.partition import control_flow
from syrtos.keras.tensorflow.partition.draw_counters import DRAWING
from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.exchanges import Exchanges, NoExchanges
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.partition.rules import TABLE
from syrtos.keras.tensorflow.partition.rules.elementwise import KEEPING_SUMS, SUMS, is_linear
from syrtos.keras.tensorflow.partition.rules.lists import MAKING, note_lists
from syrtos.keras.tensorflow.partition.rules.random import DRAWS
from syrtos.keras.tensorflow.partition.rules.registry import types
from syrtos.keras.tensorflow.partition.rules.shapes import follow_sizes
from syrtos.keras.tensorflow.partition.share import Share
from syrtos.keras.tensorflow.partition.values import Partial, Value
from syrtos.keras.tensorflow.tf_internals_emission import CALLS, TracedGraph, is_compiled_call

# Their rules hold also where every worker has all inputs: they make sizes known, or rows.
_ALWAYS = frozenset(
    (
        *(
            "BroadcastGradientArgs",
            "BroadcastTo",
            "Fill",
            "Range",
            "Shape",
            "ShapeN",
            "Size",
            "Tile",
        ),
        *DRAWS,
        *MAKING,
    )
)
# Partial sums pass these as they are.
_PASSING = KEEPING_SUMS | {
    *("ConcatV2", "ExpandDims", "Pack", "Reshape", "Squeeze", "Sum", "Transpose"),
    *("Shape", "ShapeN", "Size", "Rank"),
}
# They have functions, whose operations are emitted one by one.
OF_FUNCTIONS = frozenset({*CALLS, *control_flow.RULES})
# They write to no input that is lent. An operation after one that returns a part of its input, or
# the input itself (`Slice`, `Split`, `Reshape`, `Identity`), would.
_READING = frozenset(
    types(
        "Add AddV2 AddN Sub Mul RealDiv DivNoNan Square SquaredDifference Maximum Minimum Sqrt Rsqrt"
        " Abs Neg Sign L2Loss IsFinite IsNan AssignAddVariableOp AssignSubVariableOp"
        " ResourceApplyGradientDescent ResourceApplyAdam ResourceApplyMomentum"
        " ResourceApplyKerasMomentum"
    )
)
# Their result has the sizes of their first input.
_SAME_SIZES = frozenset(
    types("Cumsum Cumprod ReverseV2 RandomShuffle Roll Softmax LogSoftmax MatrixBandPart Sort")
)

PartitionerT = TypeVar("PartitionerT", bound="Partitioner")


class Partitioner(control_flow.GraphEmitter):
    """Emits the operations of a traced program for this worker's rows.

    An operation with a rule is computed on rows. Any other gets its inputs whole, and every worker
    computes it: a missing rule costs time, and changes no number.
    """

    def __init__(
        self,
        share: Share,
        exchanges: Exchanges,
        report: Report,
        gradients: Mapping[Any, object] | None = None,
    ) -> None:
        """
        Args:
            share: this worker's rows.
            exchanges: the other workers.
            report: takes what is noted of the program.
            gradients: the variables whose gradients an optimizer takes, by the references of these
                tensors.
        """
        super().__init__(share, exchanges, report)
        self._gradients = gradients or {}

    @functools.cached_property
    def _variables(self) -> dict[Any, object]:
        # Found once: a loop is emitted on trial by many children.
        return _with_sums(self._gradients)

    def gradients_in(self, graph: object) -> list[tf.Tensor]:
        """Returns the gradients in a graph: all workers sum all, also those of which one takes none."""
        found = [reference.deref() for reference in self._gradients]
        return [tensor for tensor in found if tensor is not None and tensor.graph is graph]

    def child(self, report: Report | None = None) -> Partitioner:
        """Returns a partitioner for a graph inside of this one, e.g. the body of a loop."""
        return self.child_of(Partitioner, report)

    def child_of(self, kind: type[PartitionerT], report: Report | None = None) -> PartitionerT:
        """Returns what `child` does, of a class of one's own."""
        made = kind(self.share, self.exchanges, report or self.report, self._gradients)
        made.defers_sums, made._variables = self.defers_sums, self._variables
        made.counters, made.is_compiled = self.counters, self.is_compiled
        made.shares_draws, made.callers = self.shares_draws, self.callers
        return made

    def of_whole_batch(self) -> Partitioner:
        """Returns a partitioner for a branch in which each worker has all rows."""
        share = Share(0, self.share.total, self.share.total)
        made = Partitioner(share, NoExchanges(), Report())
        made.counters, made.shares_draws = self.counters, self.shares_draws
        return made

    def run_graph(self, graph: TracedGraph, inputs: Sequence[Value]) -> list[Value]:
        """Emits a graph's operations into the current graph; returns its outputs.

        Args:
            graph: a `FuncGraph`.
            inputs: the values of its inputs, captured ones included.
        """
        run = GraphRun(self, graph, inputs)
        run.emit_all()
        return run.outputs()

    def run(self, op: tf.Operation, values: list[Value]) -> list[Value]:
        """Emits one operation; returns its results."""
        known = follow_sizes(self, op, values)
        results = self._emit(op, values)
        note_lists(op, values, results)
        for result, entries in zip(results, known or [], strict=False):
            if result.known is None:
                result.known = entries
        for tensor, result in zip(op.outputs, results, strict=True):
            _keep_shape(self, tensor, result)
            if result.is_partial:
                self._note_partial(tensor, result)
        return results

    def _note_partial(self, tensor: tf.Tensor, value: Value) -> None:
        """Notes what its reduction has to know of a partial value; ``tensor``: in the traced graph."""
        value.is_only_read = _is_only_read(tensor)
        value.gradient_of = self._variables.get(tensor.ref())
        is_passed = all(consumer.type in _PASSING for consumer in tensor.consumers())
        if self._is_term(tensor) or (value.gradient_of is None and is_passed):
            return
        self.note_due(value)

    def _is_term(self, tensor: tf.Tensor) -> bool:
        """Returns whether a gradient is only added to others of its variable (a shared layer's)."""
        consumers, variable = tensor.consumers(), self._variables.get(tensor.ref())
        if variable is None or len(consumers) != 1 or consumers[0].type not in SUMS:
            return False
        return self._variables.get(consumers[0].outputs[0].ref()) is variable

    def wholes(self, values: Sequence[Value]) -> list[tf.Tensor]:
        """Returns whole values; partial ones are reduced together."""
        for value in values:
            if value.is_partial:
                self.note_due(value)
        return [self.whole(value) for value in values]

    def _emit(self, op: tf.Operation, values: list[Value]) -> list[Value]:
        is_plain = all(value.is_replicated for value in values)
        draws = self.shares_draws and op.type in OF_FUNCTIONS and _draws_in(op)
        if is_plain and op.type not in _ALWAYS and not draws:
            return [Value(tensor) for tensor in self.emit(op, [v.tensor for v in values])]
        if op.type in CALLS and is_compiled_call(op):
            # What XLA compiles holds no exchange; where rows come in, it is computed operation by
            # operation.
            values = self.reduce_partial(values)
            if all(value.is_replicated for value in values):
                return [Value(tensor) for tensor in self.emit(op, [v.tensor for v in values])]
        results = self._emit_functions(op, values) if op.type in OF_FUNCTIONS else None
        if results is None:
            results = self._by_rule(op, values)
        return results if results is not None else self._compute_whole(op, values)

    def _emit_functions(self, op: tf.Operation, values: list[Value]) -> list[Value] | None:
        """Emits the operations of the functions that a call, a branch or a loop has."""
        around, self.callers = self.callers, (*self.callers, op)
        try:
            if rule := control_flow.RULES.get(op.type):
                return rule(self, op, values)
            graph = tf_internals_emission.graph_of_function(op, "f")
            return None if graph is None else self.run_graph(graph, values)
        finally:
            self.callers = around

    def _by_rule(self, op: tf.Operation, values: list[Value]) -> list[Value] | None:
        rule = TABLE.rule_of(op.type)
        if rule is None:
            return None
        if not TABLE.takes_partial(op.type):
            values = self.reduce_partial(values)
            if op.type not in _ALWAYS and all(value.is_replicated for value in values):
                return [Value(tensor) for tensor in self.emit(op, [v.tensor for v in values])]
        results = rule(self, op, values)
        self.report.split += results is not None
        return results

    def _compute_whole(self, op: tf.Operation, values: list[Value]) -> list[Value]:
        if any(value.rows for value in values):
            self.report.note_whole(op)
        outputs = self.emit(op, self.wholes(values))
        if not any(value.rows for value in values):
            return [Value(tensor) for tensor in outputs]
        dims = self.dims(values[0]) if op.type in _SAME_SIZES else None
        return [self.spread(tensor, dims if i == 0 else None) for i, tensor in enumerate(outputs)]


class GraphRun:
    """The operations of one graph as they are emitted, those without exchanges first.

    An operation that needs a partial value whole waits until all others are emitted. So sums that
    are ready together travel together, and a program makes as few exchanges as its longest chain
    of them has.
    """

    def __init__(
        self, partitioner: Partitioner, graph: TracedGraph, inputs: Sequence[Value]
    ) -> None:
        self._partitioner = partitioner
        self._graph = graph
        self._found = {
            tensor.ref(): value for tensor, value in zip(graph.inputs, inputs, strict=False)
        }
        # What stands for an operation where others wait for its end.
        self._made: dict[tf.Operation, list[tf.Operation]] = {}

    def within(
        self, partitioner: Partitioner, inputs: Sequence[tuple[tf.Tensor, Value]]
    ) -> GraphRun:
        """Returns a run that goes on in a graph inside of this one, with other values of inputs."""
        made = GraphRun(partitioner, self._graph, [])
        made._found = {**self._found, **{tensor.ref(): v for tensor, v in inputs}}
        # The part that is emitted already runs before that graph.
        made._made = {op: [] for op in self._made}
        return made

    def give(self, tensors: Sequence[tf.Tensor]) -> None:
        """Takes tensors that every worker has as they are, unless they have values already."""
        for tensor in tensors:
            self._found.setdefault(tensor.ref(), Value(tensor))

    def value_of(self, tensor: tf.Tensor) -> Value:
        """Returns the value of a tensor that was emitted or given."""
        return self._found[tensor.ref()]

    def operations_of(self, op: tf.Operation) -> list[tf.Operation]:
        """Returns what stands for an operation where others wait for its end."""
        if op.type == "NoOp":
            return [
                made
                for other in tf_internals_emission.control_inputs(op)
                for made in self.operations_of(other)
            ]
        outside = [] if tf_internals_emission.is_of_function(op.graph) else [op]
        return self._made.get(op, outside)

    def was_emitted(self, op: tf.Operation) -> bool:
        """Returns whether an operation has been emitted."""
        return op in self._made

    def tensors(self) -> dict[Any, tf.Tensor]:
        """Returns this worker's tensors of what was emitted, by the references of the graph's own."""
        return {reference: value.tensor for reference, value in self._found.items()}

    def emit_all(self) -> None:
        """Emits the whole graph."""
        needed = self._partitioner.gradients_in(self._graph)
        self.emit(list(tf_internals_emission.in_topological_order(self._graph, needed)))

    def emit(self, ops: Sequence[tf.Operation]) -> None:
        """Emits operations of one graph, those that wait for others after these."""
        followers = {op: list[tf.Operation]() for op in ops if not self._skip(op)}
        if not followers:
            return
        # In the order in which they were added, which is the same on all workers, also where one
        # has operations of its own (a part of an update). That of control inputs is not: TensorFlow
        # keeps many of them by their addresses.
        kept = [op for op in ops[0].graph.get_operations() if op in followers]
        places = {op: place for place, op in enumerate(kept)}
        missing: dict[tf.Operation, int] = {}
        for op in kept:
            before = {
                other for other in tf_internals_emission.operations_before(op) if other in places
            }
            missing[op] = len(before)
            for other in before:
                followers[other].append(op)
        ready = [places[op] for op in kept if not missing[op]]
        held: list[tf.Operation] = []
        while ready or held:
            if not ready:
                self._partitioner.reduce_due([v for op in held for v in self._values(op)])
                ready, held = sorted(places[op] for op in held), []
            op = kept[heapq.heappop(ready)]
            if self._needs_reduction(op):
                held.append(op)
                continue
            self._run(op)
            for follower in followers[op]:
                missing[follower] -= 1
                if not missing[follower]:
                    heapq.heappush(ready, places[follower])

    def outputs(self) -> list[Value]:
        """Returns the values of the graph's outputs."""
        return [self._found[tensor.ref()] for tensor in self._graph.outputs]

    def _values(self, op: tf.Operation) -> list[Value]:
        return [self._found[tensor.ref()] for tensor in op.inputs]

    def _skip(self, op: tf.Operation) -> bool:
        if op.type == "Placeholder":
            self._made[op] = []
        # What a group waits for, its followers wait for by themselves: see `operations_before`.
        return op.type in ("Placeholder", "NoOp")

    def _needs_reduction(self, op: tf.Operation) -> bool:
        values = self._values(op)
        return any(v.is_partial for v in values) and not keeps_partial(
            self._partitioner, op, values
        )

    def _run(self, op: tf.Operation) -> None:
        waits = tf_internals_emission.control_inputs(op)
        # Graphs of functions order what uses one resource by themselves, as it is added.
        if tf_internals_emission.is_of_function(op.graph):
            waits = [o for o in waits if not (_uses_resource(op) and _uses_resource(o))]
        with tf.control_dependencies([made for o in waits for made in self.operations_of(o)]):
            self._partitioner.made = None
            results = self._partitioner.run(op, self._values(op))
        for tensor, value in zip(op.outputs, results, strict=True):
            self._found[tensor.ref()] = value
        last = self._partitioner.made
        self._made[op] = [value.tensor.op for value in results[:1]] or ([last] if last else [])


def unshared_draws(operations: Iterable[tf.Operation]) -> list[str]:
    """Returns the kinds of draws in functions that are called whole, as those that XLA compiles."""
    every = {
        inner for op in operations for inner in (op, *tf_internals_emission.operations_called(op))
    }
    is_whole = (op for op in every if op.type not in OF_FUNCTIONS or is_compiled_call(op))
    return sorted({kind for op in is_whole for kind in _draws_in(op)})


def _draws_in(op: tf.Operation) -> set[str]:
    """Returns the kinds of draws in the functions that an operation has."""
    return {inner.type for inner in tf_internals_emission.operations_called(op)} & DRAWING


def _with_sums(gradients: Mapping[Any, object]) -> dict[Any, object]:
    """Returns the variables of gradients, and of sums whose terms are gradients of one variable."""
    found, waiting = dict(gradients), [reference.deref() for reference in gradients]
    while waiting:
        tensor = waiting.pop()
        for consumer in tensor.consumers() if tensor is not None else ():
            total = consumer.outputs[0].ref() if consumer.type in SUMS else None
            if total is None or total in found:
                continue
            first, *others = (found.get(term.ref()) for term in consumer.inputs)
            if first is not None and all(other is first for other in others):
                found[total] = first
                waiting.append(consumer.outputs[0])
    return found


def _is_only_read(tensor: tf.Tensor) -> bool:
    """Returns whether all that takes a tensor computes new memory from it."""
    if not tf_internals_emission.is_of_function(tensor.graph):
        return False  # a session may fetch it
    is_output = any(tensor is output for output in getattr(tensor.graph, "outputs", ()))
    return not is_output and all(
        consumer.type in _READING or is_compiled_call(consumer) for consumer in tensor.consumers()
    )


def _uses_resource(op: tf.Operation) -> bool:
    return any(tensor.dtype == tf.resource for tensor in op.inputs)


def keeps_partial(emitter: Emitter, op: tf.Operation, values: Sequence[Value]) -> bool:
    """Returns whether an operation takes its partial inputs as they are."""
    # What is exchanged for an optimizer are gradients, also where it multiplies them; of one
    # variable their sum.
    variables = [value.gradient_of for value in values if value.is_partial]
    is_sum = op.type in SUMS and len(variables) == len(values)
    if any(variable is not None for variable in variables):
        return is_sum and all(variable is variables[0] for variable in variables)
    if op.type in KEEPING_SUMS:
        return is_linear(emitter, op, values)
    if op.type in ("ConcatV2", "Pack"):
        parts = values[:-1] if op.type == "ConcatV2" else values
        return all(value.placement == Partial() for value in parts)
    return op.type in _PASSING or (op.type in CALLS and not is_compiled_call(op))


def _keep_shape(emitter: Emitter, tensor: tf.Tensor, value: Value) -> None:
    """Gives a result the static sizes that the traced program knows."""
    if tensor.shape.rank is None or tensor.dtype in (tf.variant, tf.resource):
        return
    sizes = list(tensor.shape.as_list())
    if value.rows:
        each, count = value.rows.each, emitter.share.count
        sizes[value.rows.dim] = count * each if emitter.share.is_static else None
    value.tensor.set_shape(sizes)
