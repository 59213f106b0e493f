"""A partitioned program cut at its exchanges into segments, each of which XLA compiles.

The level of an operation is the number of operations that XLA can't compile, such as exchanges,
that it waits for one after another. The others of one level are a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from syrtos.keras.tensorflow import tf_internals_compilation, tf_internals_emission
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.tf_internals_emission import TracedGraph

# They give nothing that others compute with, so nothing has to wait for them.
_OBSERVING = frozenset(("Assert", "PrintV2", "WriteSummary", "WriteScalarSummary"))
_SIZED_BY_DATA = frozenset(
    (
        *("Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"),
        *("DynamicPartition", "NonMaxSuppressionV3", "NonMaxSuppressionV4"),
    )
)
# Constants stand in each segment that takes them: some operations of XLA want to know their values.
_ANYWHERE = ("Placeholder", "NoOp", "Const")


class CompiledPrograms:
    """Adds programs to graphs, in segments that XLA compiles."""

    def __init__(self) -> None:
        # Functions of Python that operations call live as long as the graph that names them.
        self._built: list[Any] = []

    def add(
        self,
        build: Callable[[], Sequence[tf.Tensor]],
        report: Report,
        apart: Container[tf.Operation] = (),
    ) -> list[tf.Tensor]:
        """Adds what ``build`` adds to the current graph, in compiled segments.

        Args:
            build: adds operations to the graph of a function; returns the tensors that are needed.
                It may take tensors of the current graph.
            report: takes what could not be compiled.
            apart: operations that are not to be compiled, once ``build`` has added them.
        """
        # This function is not compiled as a whole: it is cut first.
        program = tf.function(lambda: list(build()), autograph=False).get_concrete_function()
        self._built.append(program)
        inputs = [tensor.ref() for tensor in program.graph.inputs]
        segments = _Segments(program.graph, report, apart)
        return segments.emit(dict(zip(inputs, program.captured_inputs, strict=True)))


class _Segments:
    """The operations of one graph by their levels."""

    def __init__(self, graph: TracedGraph, report: Report, apart: Container[tf.Operation]) -> None:
        # A function's outputs wait for its effects, which the function around it waits for.
        self._outputs = [_before_waiting(tensor) for tensor in graph.outputs]
        waiting = {tensor.op for tensor in graph.outputs} - {t.op for t in self._outputs}
        ordered = tf_internals_emission.in_topological_order(graph)
        operations = [op for op in ordered if op.type not in _ANYWHERE and op not in waiting]
        self._kept = set(operations)
        self._apart = {
            op for op in operations if op in apart or not tf_internals_compilation.compiles(op)
        }
        self._levels = self._levels_of(operations)
        while across := self._with_lists_of_others() | self._with_sizes_of_others(operations):
            self._apart |= across
            self._levels = self._levels_of(operations)
        for op in operations:
            if op in self._apart:
                report.note_uncompiled(op)

    def _levels_of(self, operations: Sequence[tf.Operation]) -> list[list[tf.Operation]]:
        level: dict[tf.Operation, int] = {}
        for op in operations:
            level[op] = max(
                (
                    self._level_after(other, level)
                    for other in tf_internals_emission.operations_before(op)
                ),
                default=0,
            )
        return [
            [op for op in operations if level[op] == each]
            for each in range(1 + max(level.values(), default=0))
        ]

    def _with_lists_of_others(self) -> set[tf.Operation]:
        """Returns compiled operations that take a list of tensors from another segment, or give one."""
        found: set[tf.Operation] = set()
        for operations in self._levels:
            inside = {op for op in operations if op not in self._apart}
            for op in inside:
                taken = any(t.dtype == tf.variant and t.op not in inside for t in op.inputs)
                given = any(
                    t.dtype == tf.variant and self._is_taken_outside(t, inside) for t in op.outputs
                )
                if taken or given:
                    found.add(op)
        return found

    def _with_sizes_of_others(self, operations: Sequence[tf.Operation]) -> set[tf.Operation]:
        """Returns compiled operations whose sizes data decides, where a segment needs those of another.

        XLA gives the other segment a size that is not the true one (TensorFlow 2.21), and would
        compile it anew for each size.
        """
        sized: dict[object, tf.Operation] = {}
        for op in operations:
            if op.type in _SIZED_BY_DATA or any(t.ref() in sized for t in op.inputs):
                open_shapes = (t for t in op.outputs if not t.shape.is_fully_defined())
                sized.update((tensor.ref(), op) for tensor in open_shapes)
        for level in self._levels:
            inside = {op for op in level if op not in self._apart}
            for op in inside:
                if any(t.ref() in sized and self._is_taken_outside(t, inside) for t in op.outputs):
                    return set(sized.values()) - self._apart
        return set()

    def _level_after(self, op: tf.Operation, level: Mapping[tf.Operation, int]) -> int:
        return level.get(op, 0) + (op in self._apart and op.type not in _OBSERVING)

    def emit(self, found: dict[object, tf.Tensor]) -> list[tf.Tensor]:
        """Adds the operations to the current graph; returns the outputs.

        ``found``: the current graph's tensors by the references of the graph's inputs.
        """
        last: list[tf.Operation] = []
        for operations in self._levels:
            if compiled := [op for op in operations if op not in self._apart]:
                self._emit_compiled(compiled, found)
            for op in operations:
                if op not in self._apart:
                    continue
                # Branches and loops with exchanges take their turn among these on all workers.
                exchanges = tf_internals_emission.may_exchange(op)
                with tf.control_dependencies(last if exchanges else []):
                    made = _emit(op, found)
                last = [made] if exchanges else last
        return [_tensor_of(tensor, found) for tensor in self._outputs]

    def _emit_compiled(
        self, operations: Sequence[tf.Operation], found: dict[object, tf.Tensor]
    ) -> None:
        """Adds a call of one compiled function of operations."""
        inside = set(operations)
        taken = _unique(
            tensor
            for op in operations
            for tensor in op.inputs
            if tensor.op not in inside and tensor.op.type != "Const"
        )
        given = [t for op in operations for t in op.outputs if self._is_taken_outside(t, inside)]

        def compute(*tensors: tf.Tensor) -> list[tf.Tensor]:
            own = dict(zip((tensor.ref() for tensor in taken), tensors, strict=True))
            for op in operations:
                _emit(op, own)
            return [own[tensor.ref()] for tensor in given]

        function = tf.function(compute, autograph=False, jit_compile=True)
        results = function(*(found[tensor.ref()] for tensor in taken))
        for tensor, result in zip(given, results or (), strict=True):
            found[tensor.ref()] = result

    def _is_taken_outside(self, tensor: tf.Tensor, inside: set[tf.Operation]) -> bool:
        users = {user for user in tensor.consumers() if user in self._kept}
        return not users <= inside or any(tensor is output for output in self._outputs)


def _before_waiting(output: tf.Tensor) -> tf.Tensor:
    is_only_waiting = output.op.type == "Identity" and not output.consumers()
    return output.op.inputs[0] if is_only_waiting else output


def _emit(operation: tf.Operation, found: dict[object, tf.Tensor]) -> tf.Operation:
    """Adds a copy of an operation to the current graph, and returns it."""
    inputs = [_tensor_of(tensor, found) for tensor in operation.inputs]
    made = tf_internals_emission.emit(operation, inputs)
    for tensor, result in zip(operation.outputs, made.outputs, strict=True):
        if result.dtype not in (tf.resource, tf.variant):
            result.set_shape(tensor.shape)
        found[tensor.ref()] = result
    return made


def _tensor_of(tensor: tf.Tensor, found: dict[object, tf.Tensor]) -> tf.Tensor:
    if tensor.ref() not in found and tensor.op.type == "Const":
        _emit(tensor.op, found)
    return found[tensor.ref()]


def _unique(tensors: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    return list({tensor.ref(): tensor for tensor in tensors}.values())
