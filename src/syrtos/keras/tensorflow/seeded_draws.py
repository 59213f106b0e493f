"""Finds random draws of a step whose numbers must be those of one process, in the graph of the step.

By a constant seed, as in `tf.random.stateless_uniform(shape, (1, 2))`, each worker would draw for
its rows what the others draw for theirs. A comparison of both ways does not show it, as it has no
draws. Keras's own layers draw by `keras.random.SeedGenerator`, whose seed is in a variable, and each
worker's is another: that counts in predictions alone, where each row is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from syrtos.keras.tensorflow import tf_internals_graphs

_DRAWS = ("StatelessMultinomial", "StatelessParameterized", "StatelessRandom", "StatelessTruncated")
# These keep a state of their own, or take that of a `tf.random.Generator`.
_STATEFUL_DRAWS = (
    "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomShuffle", "RandomStandardNormal", "RandomUniform",
    "StatefulRandomBinomial", "StatefulStandardNormal", "StatefulTruncatedNormal", "StatefulUniform", "TruncatedNormal",
)  # fmt: skip
# These draw numbers of a shape for each of their parameters.
_OF_PARAMETERS = ("RandomGamma", "RandomPoisson", "StatelessRandomGamma", "StatelessRandomPoisson")
# These make the inputs of draws.
_KEYS = "StatelessRandomGet"


def first_seeded_draw(graph: tf.Graph, rows: Iterable[object], by_any_seed: bool = False) -> str:
    """Returns the type of the first operation that draws for rows by a constant seed; empty if none.

    Args:
        graph: in which the step has been traced.
        rows: the tensors of this worker's share.
        by_any_seed: whether draws by other seeds count too.
    """
    dense = [leaf for leaf in rows if isinstance(leaf, tf.Tensor) and leaf.shape.rank]
    counts = {int(count) for leaf in dense if (count := leaf.shape[0]) is not None}
    return _first_in(graph, counts, by_any_seed)


def _first_in(graph: tf.Graph, counts: set[int], by_any_seed: bool) -> str:
    for operation in graph.get_operations():
        name = operation.type
        if _draws(operation, by_any_seed) and _has_rows(operation, counts):
            return name
        attributes, _ = tf_internals_graphs.CALLS.get(name, ((), 0))
        for attribute in attributes:
            inner = tf_internals_graphs.graph_of_call(operation, attribute)
            if inner is not None and (found := _first_in(inner, counts, by_any_seed)):
                return found
    return ""


def _draws(operation: tf.Operation, by_any_seed: bool) -> bool:
    name = operation.type
    if by_any_seed and name.startswith(_STATEFUL_DRAWS):
        return True
    is_draw = name.startswith(_DRAWS) and not name.startswith(_KEYS)
    return is_draw and (by_any_seed or _has_constant_seed(operation))


def _has_constant_seed(operation: tf.Operation) -> bool:
    """Returns whether the seed of a draw, its second input or what makes it, is a constant."""
    inputs = list(operation.inputs)
    # Of a multinomial draw it comes after the number of samples.
    seed = inputs[2 if operation.type.startswith("StatelessMultinomial") else 1]
    if seed.op.type.startswith(_KEYS):
        seed = seed.op.inputs[0]
    return _is_constant(seed)


def _is_constant(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is made of constants alone."""
    waiting, seen = [tensor.op], set[int]()
    while waiting:
        operation = waiting.pop()
        if id(operation) in seen:
            continue
        seen.add(id(operation))
        # What has no inputs, and is no constant, is an argument of the graph.
        if operation.op_def.is_stateful or (not operation.inputs and operation.type != "Const"):
            return False
        waiting += [one.op for one in operation.inputs]
    return True


def _has_rows(operation: tf.Operation, counts: set[int]) -> bool:
    """Returns whether a draw has, or may have, as many rows as this worker's share."""
    if operation.type.startswith(_OF_PARAMETERS):  # its parameters may have the rows
        shape = operation.outputs[0].shape
        return shape.rank is None or (shape.rank > 0 and shape[0] in {None, *counts})
    first = operation.inputs[0]
    if operation.type.startswith("StatelessMultinomial"):
        return first.shape[0] is None or first.shape[0] in counts
    shape = tf.get_static_value(first, partial=True)
    if shape is None:
        return True
    return len(shape) > 0 and (shape[0] is None or int(shape[0]) in counts)
