"""Finds operations of the script's step whose outcome depends on a statistic of this worker's rows.

A spike that is skipped, a floor under a mean, a rate that falls where the loss has not, a mean over
the rows that a mask leaves: on rows of the first batch both ways may agree, and in a later batch a
part of the rows decides otherwise than all of them. No comparison can tell when. The graph of the
step shows it, once it is traced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from syrtos.keras.split.script_lines import line_of_script
from syrtos.keras.tensorflow import tf_internals_graphs

# Operations whose result is no smooth function of a number.
_DECIDE = frozenset((
    "Abs", "ArgMax", "ArgMin", "Ceil", "ClipByValue", "Equal", "Floor", "Greater", "GreaterEqual", "IsFinite", "IsInf", "IsNan", "Less", "LessEqual",
    "Maximum", "Minimum", "NotEqual", "Relu", "Relu6", "Rint", "Round", "Sign", "TopKV2",
))  # fmt: skip
# These divide by their second input: a sum over chosen rows by how many were chosen.
_DIVIDE = frozenset(["Div", "DivNoNan", "RealDiv", "Xdivy"])
# The same of rows that `tf.boolean_mask` has chosen. Sums over the rows have forgotten how many
# there were.
_CHOOSE, _MEAN, _FORGET = "Where", "Mean", frozenset(["All", "Any", "Max", "Min", "Prod", "Sum"])
# These decide by a number of rows, which counts where batches are too large to be compared whole.
_DECIDE_BY_COUNT = frozenset((
    "Equal", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Less", "LessEqual", "Maximum", "Minimum", "NotEqual",
))  # fmt: skip
_COUNT, _KEEP_COUNTS = (
    frozenset(["Shape", "Size"]),
    frozenset(["Cast", "Identity", "Squeeze", "StridedSlice"]),
)
# These decide by their first input alone.
_BRANCHES = frozenset(["Case", "If", "Select", "SelectV2", "StatelessCase", "StatelessIf"])
# Operations whose results hold nothing of the rows but how many they are, or what all workers have
# exchanged.
_CLEAN = frozenset(["EagerPyFunc", "PyFunc", "Rank", "Shape", "ShapeN", "Size"])
# Running extremes of variables: the first batch shows their rules.
_EXTREMES = frozenset(["Maximum", "Minimum"])
_TO_VARIABLES = frozenset(["AssignVariableOp", "Cast", "Identity", "Reshape"])

_OF_TENSORFLOW = str(Path(tf.__file__).parent)
_CHECKS = "check_ops.py"  # of tf.debugging: it ends the step, and decides nothing
# The gradient of a division divides by the same number.
_GRADIENTS = ("_grad.py", "backprop.py", "gradients_util.py")


def first_decision(graph: tf.Graph, rows: Iterable[object], by_count: bool = False) -> str:
    """Returns the script's first operation that decides by a number of this worker's rows.

    The text is empty if there is none.

    Args:
        graph: in which the step has been traced.
        rows: the dense, sparse and ragged tensors of this worker's share, in that graph. A tensor
            that is made of them is a number of the rows, and no row itself, if its shape does not
            depend on how many rows there are.
        by_count: whether what is decided by how many rows there are is a decision too.

    Returns:
        Such as ``Greater in train.py, line 7``.
    """
    leaves = list(rows)
    dense = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.shape.rank]
    varies = all(leaf.shape[0] is None for leaf in dense)
    parts = tf.nest.flatten(leaves, expand_composites=True)
    found = [leaf for leaf in parts if isinstance(leaf, tf.Tensor) and leaf.graph is graph]
    return _Search(varies, by_count).in_graph(graph, [(leaf, False) for leaf in found])[0]


class _Search:
    """A search for decisions.

    Attributes:
        varies: whether the number of rows is none of the static shapes; else only scalars count as
            numbers.
        by_count: whether numbers of rows are followed.
    """

    def __init__(self, varies: bool, by_count: bool) -> None:
        self.varies, self.by_count = varies, by_count
        # ids of tensors with as many rows as a mask has chosen, and of numbers of rows
        self._chosen: set[int] = set()
        self._counts: set[int] = set()

    def in_graph(
        self, graph: tf.Graph, given: Sequence[tuple[tf.Tensor, bool]]
    ) -> tuple[str, list[bool | None]]:
        """Returns the first decision in a graph, and of each of its outputs whether it is a number.

        None stands for an output that depends on no rows. ``given``: tensors of the graph that
        depend on the rows, and whether they are numbers.
        """
        known: dict[int, bool] = {id(tensor): is_number for tensor, is_number in given}
        for operation in graph.get_operations():
            if self.by_count and self._decides_by_count(operation, known):
                return f"the number of rows: {operation.type} in {_line_of(operation)}", []
            if operation.type in _CLEAN:
                continue
            of_inputs = [known.get(id(tensor)) for tensor in operation.inputs]
            if all(one is None for one in of_inputs):
                continue
            if self._decides(operation, of_inputs):
                return f"{operation.type} in {_line_of(operation)}", []
            outputs = [self._is_number(tensor) for tensor in operation.outputs]
            attributes, skipped = tf_internals_graphs.CALLS.get(operation.type, ((), 0))
            for attribute in attributes:
                inner = tf_internals_graphs.graph_of_call(operation, attribute)
                if inner is None:
                    continue
                pairs = zip(inner.inputs, of_inputs[skipped:], strict=False)
                found, made = self.in_graph(
                    inner, [(tensor, one) for tensor, one in pairs if one is not None]
                )
                if found:
                    return found, []
                outputs = made if attribute == "f" else outputs
            known |= {
                id(tensor): one
                for tensor, one in zip(operation.outputs, outputs, strict=False)
                if one is not None
            }
        return "", [known.get(id(tensor)) for tensor in getattr(graph, "outputs", ())]

    def _decides_by_count(self, operation: tf.Operation, known: Mapping[int, bool]) -> bool:
        """Returns whether an operation decides by a number of rows.

        It also notes the outputs that pass such a number on.
        """
        inputs, name = [id(tensor) for tensor in operation.inputs], operation.type
        is_count = any(one in self._counts for one in inputs)
        if (name in _COUNT and inputs[0] in known) or (name in _KEEP_COUNTS and is_count):
            self._counts.update(map(id, operation.outputs))
        # Two numbers of rows are compared with each other in checks of shapes.
        one_of_them = is_count and not all(one in self._counts for one in inputs)
        return name in _DECIDE_BY_COUNT and one_of_them and bool(_line_of(operation))

    def _means_over_chosen(self, operation: tf.Operation) -> bool:
        """Returns whether an operation is a mean over chosen rows, and follows such rows."""
        inputs, name = [id(tensor) for tensor in operation.inputs], operation.type
        follows = name == _CHOOSE or (
            name not in _FORGET and any(one in self._chosen for one in inputs)
        )
        if follows and name != _MEAN:
            self._chosen.update(map(id, operation.outputs))
        return follows and name == _MEAN and self._is_number(operation.outputs[0]) is True

    def _is_number(self, tensor: tf.Tensor) -> bool | None:
        # The handle of a variable, or of a list of tensors, is no number.
        if tensor.dtype in (tf.resource, tf.variant):
            return None
        return tensor.shape.is_fully_defined() if self.varies else tensor.shape.rank == 0

    def _decides(self, operation: tf.Operation, of_inputs: Sequence[bool | None]) -> bool:
        if operation.type in _BRANCHES:
            return of_inputs[0] is True and bool(_line_of(operation))
        if operation.type in _EXTREMES and _is_for_variables(operation):
            return False
        if operation.type in _DIVIDE and of_inputs[1] is True:
            return not _is_of_gradient(operation) and bool(_line_of(operation))
        if self._means_over_chosen(operation):
            return not _is_of_gradient(operation) and bool(_line_of(operation))
        return operation.type in _DECIDE and any(of_inputs) and bool(_line_of(operation))


def _is_for_variables(operation: tf.Operation) -> bool:
    """Returns whether nothing but an assignment uses an operation's result."""
    users = [user for tensor in operation.outputs for user in tensor.consumers()]
    return bool(users) and all(
        user.type in _TO_VARIABLES and (user.type == "AssignVariableOp" or _is_for_variables(user))
        for user in users
    )


def _is_of_gradient(operation: tf.Operation) -> bool:
    """Returns whether a gradient has made an operation."""
    return any(frame.filename.endswith(_GRADIENTS) for frame in operation.traceback or ())


def _line_of(operation: tf.Operation) -> str:
    """Names the line that made an operation; empty if Keras, syrtos or a TensorFlow check did."""
    frames = [(frame.filename, frame.lineno) for frame in reversed(operation.traceback or ())]
    is_check = any(path.startswith(_OF_TENSORFLOW) and path.endswith(_CHECKS) for path, _ in frames)
    return "" if is_check else line_of_script(frames, _OF_TENSORFLOW, "tensorflow")
