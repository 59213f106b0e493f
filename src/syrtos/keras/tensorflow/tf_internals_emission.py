"""Private symbols of TensorFlow by which operations of one graph are added to another.

They have been seen to work on TensorFlow 2.18 to 2.21.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import handle_data_util, while_v2
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from syrtos.keras.patching import Method, replace
from syrtos.keras.tensorflow import tf_internals_graphs

# Operations that call a function.
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_VARIANT = tf.variant.as_datatype_enum
_CALLS_OF_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
# Attributes that say where, and in what shapes, an operation stood in its own graph.
_OF_ITS_GRAPH = frozenset({"_output_shapes", "_class"})


class TracedGraph(Protocol):
    """TensorFlow's graph of a function."""

    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]

    @property
    def captures(self) -> Sequence[tuple[tf.Tensor, tf.Tensor]]:
        """The tensors of outside, each with the input that stands for it."""
        ...

    def get_operations(self) -> list[tf.Operation]: ...

    def as_graph_def(self) -> Any: ...

    def capture(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of outside as one of this graph."""
        ...


def emit(operation: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Operation:
    """Adds a copy of an operation, with other inputs, to the current graph.

    Calls of Python may be exchanges: like those they run in the order in which they are added.
    """
    with tf.device(operation.device) if operation.device else contextlib.nullcontext():
        if adds_in_any_order(operation.node_def):
            return _add_in_order(operation, inputs)
        return _emit(operation, inputs)


def adds_in_any_order(node: Any) -> bool:
    """Returns whether an operation adds up numbers in an order that is known at run time alone.

    `AddN` begins with an input whose memory nobody else uses at that moment, which differs by
    worker: three numbers or more then have sums that differ in their last bits. Those inside of
    functions that are called as a whole stay as they are.
    """
    return node.op == "AddN" and node.attr["N"].i > 2 and node.attr["T"].type != _VARIANT


def _add_in_order(operation: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Operation:
    total, *others = inputs
    for index, other in enumerate(others):
        # Of sums of sums Grappler makes one `AddN`, unless something is between them.
        begun = tf.raw_ops.Snapshot(input=total) if index else total
        total = tf.raw_ops.AddV2(x=begun, y=other, name=operation.name.lstrip("_"))
    return total.op


def _emit(operation: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Operation:
    if operation.type not in _CALLS_OF_PYTHON:
        return _copy(operation, inputs)
    with (
        tf_internals_graphs.after_pending_control_flow(),
        tf.control_dependencies([token := tf_internals_graphs.last_token()]),
    ):
        made = _copy(operation, inputs)
    with tf.control_dependencies([made]):
        tf_internals_graphs.set_last_token(tf.identity(token))
    return made


def _copy(operation: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Operation:
    graph: Any = tf.compat.v1.get_default_graph()
    attributes = dict(operation.node_def.attr.items())
    _add_functions(graph, operation.graph, attributes)
    # TensorFlow has no public way to add an operation by its definition: `tf.raw_ops` would need
    # each attribute as a Python value, and lacks a few operations.
    return graph._create_op_internal(
        operation.type,
        list(inputs),
        [output.dtype for output in operation.outputs],
        attrs={name: a for name, a in attributes.items() if name not in _OF_ITS_GRAPH},
        # no name begins with an underscore
        name=operation.name.lstrip("_") or operation.type,
        op_def=operation.op_def,
    )


def _add_functions(graph: Any, source: Any, attributes: dict[str, Any]) -> None:
    """Adds the functions that attributes of an operation name to a graph."""
    for attribute in attributes.values():
        called = [attribute.func.name] if attribute.HasField("func") else []
        called += [function.name for function in attribute.list.func]
        for name in called:
            if name and not graph._is_function(name):
                graph._add_function_recursive(_function_of(source, name))


def _function_of(graph: Any, name: str) -> Any:
    """Returns a function that an operation calls; graphs of gradients use those around them."""
    found = graph._get_function(name)
    while found is None and (graph := getattr(graph, "outer_graph", None)) is not None:
        found = graph._get_function(name)
    return found


def in_topological_order(
    graph: TracedGraph, needed: Iterable[tf.Tensor] = ()
) -> Iterator[tf.Operation]:
    """Yields operations, each after those whose results, or whose end, it waits for.

    Operations that neither an output, nor a ``needed`` tensor, nor an operation with an effect needs
    are left out.
    """
    # They are not in this order: `tf.while_loop` adds inputs to the loop of the forward pass later.
    done: set[tf.Operation] = set()
    outputs = {tensor.op for tensor in (*graph.outputs, *needed)}
    for root in graph.get_operations():
        if root not in outputs and not root.op_def.is_stateful and root.type != "Placeholder":
            continue
        stack = [(root, False)]
        while stack:
            operation, is_ready = stack.pop()
            if is_ready:
                yield operation
            elif operation not in done:
                done.add(operation)
                stack.append((operation, True))
                before = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
                stack += [
                    (other, False) for other in before if other not in done and other.graph is graph
                ]


def operations_before(operation: tf.Operation) -> list[tf.Operation]:
    """Returns the operations whose results, or whose end, one waits for."""
    return [*(tensor.op for tensor in operation.inputs), *control_inputs(operation)]


def control_inputs(operation: tf.Operation) -> list[tf.Operation]:
    """Returns the operations for whose end one waits, those of groups in the place of these."""
    found: list[tf.Operation] = []
    for other in operation.control_inputs:
        found += control_inputs(other) if other.type == "NoOp" else [other]
    return found


def independent_of(
    graph: TracedGraph, tensors: Sequence[tf.Tensor], needed: Iterable[tf.Tensor] = ()
) -> tuple[list[tf.Operation], list[tf.Operation]]:
    """Returns a graph's operations in topological order: those that do not wait for tensors, and the rest.

    Constants that the rest takes stand in both: some operations want to know their values.
    """
    waiting = {tensor.op for tensor in tensors}
    before: list[tf.Operation] = []
    after: list[tf.Operation] = []
    for operation in in_topological_order(graph, needed):
        sources = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
        if operation in waiting or any(source in waiting for source in sources):
            waiting.add(operation)
            after.append(operation)
        else:
            before.append(operation)
    taken = {tensor.op for operation in after for tensor in operation.inputs}
    constants = [op for op in before if op.type == "Const" and op in taken]
    return before, [*constants, *after]


def make_counter() -> tf.Variable | None:
    """Returns an int64 variable of this process that no function owns; None in a graph of TensorFlow 1."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return None
        with tf.device("/cpu:0"):
            # Not `tf.Variable`, which a function that was traced before refuses to make.
            made = ResourceVariable(np.int64(0), trainable=False, name="counter")
    return cast("tf.Variable", made)


class CountedDraw(Protocol):
    """A random operation that is to draw by a counter in a variable.

    Attributes:
        inputs: what its new node takes besides, by the names of its inputs.
    """

    @property
    def inputs(self) -> Mapping[str, tf.Tensor]: ...

    def replace(self, node: Any) -> None:
        """Changes the operation's node into one that draws by the counter."""
        ...

    def advance(self, drawn: tf.Tensor) -> None:
        """Moves the counter on past what was drawn."""
        ...


def copy_operations(
    graph: TracedGraph,
    operations: Sequence[tf.Operation],
    found: Mapping[Any, tf.Tensor],
    draws: Mapping[str, CountedDraw],
) -> list[tf.Tensor]:
    """Adds copies of operations to the current graph, all at once.

    Args:
        graph: that of the operations.
        operations: in topological order.
        found: tensors of the current graph, by references of those in ``graph`` that operations
            outside of ``operations`` make.
        draws: random operations that are to draw by counters, by their names.

    Returns:
        The outputs of ``graph``.
    """
    current = cast("TracedGraph", tf.compat.v1.get_default_graph())
    names = {operation.name for operation in operations}
    definition = graph.as_graph_def()
    kept = [node for node in definition.node if node.name in names]
    del definition.node[:]
    inputs: dict[str, tf.Tensor] = {}
    for operation in operations:
        outside = (tensor for tensor in operation.inputs if tensor.op.name not in names)
        inputs |= {tensor.name: current.capture(found[tensor.ref()]) for tensor in outside}
    for draw in draws.values():
        inputs |= draw.inputs
    for node in kept:
        # The others have run: this graph is a part of the one in which they are.
        own = [name for name in node.input if name[0] != "^" or name[1:] in names]
        del node.input[:]
        node.input.extend(own)
        for name in _OF_ITS_GRAPH & set(node.attr):
            del node.attr[name]
        if draw := draws.get(node.name):
            draw.replace(node)
        definition.node.extend(_added_in_order(node) if adds_in_any_order(node) else [node])
    made = [output.name for output in graph.outputs if output.op.name in names]
    names_made = [*made, *(f"{name}:0" for name in draws)]
    copied = iter(
        tf.graph_util.import_graph_def(
            definition, input_map=inputs, return_elements=names_made, name=""
        )
        or ()
    )
    outputs = [
        next(copied) if output.op.name in names else found[output.ref()] for output in graph.outputs
    ]
    for draw, drawn in zip(draws.values(), copied, strict=True):
        draw.advance(drawn)
    return outputs


def _added_in_order(node: Any) -> Iterator[Any]:
    """Yields nodes that add up the inputs of an `AddN` in order: see `adds_in_any_order`."""
    total, *others = [name for name in node.input if name[0] != "^"]
    waits = [name for name in node.input if name[0] == "^"]
    for index, other in enumerate(others):
        is_last = index == len(others) - 1
        if index:
            yield _node_like(node, "Snapshot", f"{node.name}/kept_{index}", [total])
            total = f"{node.name}/kept_{index}"
        name = node.name if is_last else f"{node.name}/sum_{index}"
        yield _node_like(node, "AddV2", name, [total, other, *waits * is_last])
        total = name


def _node_like(node: Any, kind: str, name: str, inputs: Sequence[str]) -> Any:
    made = type(node)(name=name, op=kind, input=inputs, device=node.device)
    made.attr["T"].CopyFrom(node.attr["T"])
    return made


def has_operation(graph: Any, types: Container[str]) -> bool:
    """Returns whether a graph, or a function that it calls, has an operation of some types."""
    return any(operation.type in types for operation in operations_within(graph))


def operations_within(graph: Any) -> Iterator[tf.Operation]:
    """Yields the operations of a graph, and of the functions that it calls."""
    waiting, seen = [graph], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for operation in one.get_operations():
            yield operation
            waiting += _called_graphs(operation)


def operations_called(operation: tf.Operation) -> Iterator[tf.Operation]:
    """Yields the operations of the functions that an operation calls."""
    for graph in _called_graphs(operation):
        yield from operations_within(graph)


def may_exchange(operation: tf.Operation) -> bool:
    """Returns whether an operation calls Python, as an exchange does, or functions that do."""
    return operation.type in _CALLS_OF_PYTHON or calls_exchange(operation)


def calls_exchange(operation: tf.Operation) -> bool:
    """Returns whether functions that an operation calls call Python, as exchanges do."""
    return any(inner.type in _CALLS_OF_PYTHON for inner in operations_called(operation))


def _called_graphs(operation: tf.Operation) -> list[Any]:
    graph: Any = operation.graph
    names = [
        function.name
        for attribute in operation.node_def.attr.values()
        for function in (attribute.func, *attribute.list.func)
    ]
    called = [graph._get_function(name) for name in names if name and graph._is_function(name)]
    return [found.graph for found in called if getattr(found, "graph", None)]


def is_of_function(graph: object) -> bool:
    """Returns whether a graph is that of a `tf.function`, a branch or a loop."""
    return isinstance(graph, func_graph.FuncGraph)


def graph_of_function(operation: tf.Operation, attribute: str) -> TracedGraph | None:
    """Returns the graph of the function that an operation's attribute names; None if unknown."""
    graph: Any = operation.graph
    function = graph._get_function(operation.get_attr(attribute).name)
    return getattr(function, "graph", None)


def is_compiled_call(operation: tf.Operation) -> bool:
    """Returns whether an operation calls a function that XLA compiles."""
    attributes = operation.node_def.attr
    return "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b


def graphs_of_functions(operation: tf.Operation, attribute: str) -> list[TracedGraph | None]:
    """Returns the graphs of the functions that an operation's list attribute names."""
    graph: Any = operation.graph
    found = (graph._get_function(f.name) for f in operation.get_attr(attribute))
    return [getattr(function, "graph", None) for function in found]


@contextlib.contextmanager
def scratch_graph() -> Iterator[TracedGraph]:
    """Context manager: operations are added to a graph that nobody keeps."""
    graph = func_graph.FuncGraph("syrtos_scratch")
    with graph.as_default():
        yield cast("TracedGraph", graph)


def placeholder_like(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Adds a placeholder with the dtype of a tensor, and what it says of a list's elements."""
    made = tf.compat.v1.placeholder(tensor.dtype, shape)
    handle_data_util.copy_handle_data(tensor, made)
    return made


# Operations that TensorFlow calls stateful, and whose order changes nothing.
_WITHOUT_EFFECTS = frozenset(
    {
        *("Assert", "Case", "CheckNumericsV2", "If", "StatefulPartitionedCall", "While"),
        *("HashTableV2", "LookupTableFindV2", "LookupTableSizeV2", "TensorArrayReadV3"),
        *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp"),
        *("VarIsInitializedOp", "VariableShape"),
    }
)


def make_iterations_take_turns() -> None:
    """Makes loops that draw or assign compute one iteration at a time, from now on.

    Threads would give the numbers of a generator to the iterations in an order that is another one
    on each worker, and in each run of one process.
    """
    # `tf.while_loop` and all that is built on it (`tf.map_fn`, `tf.scan`, AutoGraph) come here, when
    # the graphs of the body and of the condition are known. Seen on TensorFlow 2.18 to 2.21.
    replace(while_v2, "_build_while_op", _one_iteration_at_a_time)


def _one_iteration_at_a_time(original: Method) -> Method:
    def build(
        loop_vars: object,
        cond_graph: object,
        body_graph: object,
        output_shapes: object,
        parallel_iterations: object,
        *rest: object,
        **named: object,
    ) -> object:
        has_effects = any(
            each.op_def.is_stateful and each.type not in _WITHOUT_EFFECTS
            for graph in (cond_graph, body_graph)
            for each in operations_within(graph)
        )
        parallel = 1 if has_effects else parallel_iterations
        return original(loop_vars, cond_graph, body_graph, output_shapes, parallel, *rest, **named)

    return build
