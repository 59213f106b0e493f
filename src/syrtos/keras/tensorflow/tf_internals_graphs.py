"""Private symbols of TensorFlow's graphs of functions, conditionals and loops.

They have been seen to work on TensorFlow 2.21.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

_TOKEN = "_syrtos_token"
_SEEN = "_syrtos_seen"
# Bodies of tf.cond and tf.while_loop: they may use tensors of the graph around them, functions may
# not.
_INNER_GRAPHS = ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")
# Ops whose bodies may hold exchanges.
_CONTROL_FLOW = ("If", "Case", "While", "StatefulPartitionedCall")


def graph() -> tf.Graph | None:
    """Returns the graph that ops are added to now, or None when they run eagerly."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


@contextmanager
def adding_to_final(final: tf.Graph) -> Iterator[None]:
    """Context manager: operations are added to a graph of TensorFlow 1, also after it was made final."""
    is_final = final.finalized
    if is_final:
        final._unsafe_unfinalize()
    # Exchanges wait for conditions that are added from now on, not for the script's own.
    setattr(final, _SEEN, len(final.get_operations()))
    # No names of the script's own change, and no control dependencies of the caller's hold.
    with (
        _as_in_tensorflow_2(),
        final.as_default(),
        tf.name_scope(ADDED),
        tf.control_dependencies(None),
    ):
        yield
    if is_final:
        final.finalize()


@contextmanager
def _as_in_tensorflow_2() -> Iterator[None]:
    """Context manager: `disable_v2_behavior` has no effect on conditions, loops and shapes inside."""
    compat = tf.compat.v1
    with contextlib.ExitStack() as stack:
        if not compat.control_flow_v2_enabled():
            compat.enable_control_flow_v2()
            stack.callback(compat.disable_control_flow_v2)
        if not isinstance(tf.TensorShape([1])[0], int):
            compat.enable_v2_tensorshape()
            stack.callback(compat.disable_v2_tensorshape)
        yield


# The scope of operations that `adding_to_final` adds.
ADDED = "syrtos_partition/"


def is_of_dataset() -> bool:
    """Returns whether ops are added to a function of a `tf.data` pipeline now."""
    current = graph()
    while current is not None:
        # TensorFlow names such a function after the data set's method.
        if str(getattr(current, "name", "")).startswith("Dataset_"):
            return True
        current = getattr(current, "outer_graph", None)
    return False


def always_runs_with(outer: tf.Graph | None) -> bool:
    """Returns whether ops added now run whenever those of the graph ``outer`` do.

    They do if no conditional or loop lies between.
    """
    current = graph()
    while current is not None and current is not outer:
        if type(current).__name__ in _INNER_GRAPHS:
            return False
        current = getattr(current, "outer_graph", None)
    return current is outer


# Operations that pass on the numbers of their first input.
_PASSING = ("Cast", "Identity", "PreventGradient", "Reshape", "Squeeze", "StopGradient")


def is_unique(numbers: tf.Tensor) -> bool:
    """Returns whether the graph shows that `tf.unique` has made some numbers, each of them once.

    False eagerly, where there is no graph.
    """
    if tf.executing_eagerly() or not tf.is_symbolic_tensor(numbers):
        return False
    while numbers.op.type in _PASSING:
        numbers = numbers.op.inputs[0]
    return numbers.op.type in ("Unique", "UniqueV2") and numbers.value_index == 0


def same_function() -> Callable[[], bool]:
    """Returns a function that tells later whether the same `tf.function` is being traced as now.

    Where none is traced now, it tells whether none is then.
    """
    graph = _function_graph()
    # Weakly: an optimizer that keeps the result must not keep the graph.
    reference = None if graph is None else weakref.ref(graph)

    def is_same() -> bool:
        current = _function_graph()
        return (
            current is None if reference is None else current is not None and reference() is current
        )

    return is_same


def _function_graph() -> tf.Graph | None:
    current = graph()
    # Conditionals and loops are parts of the function around them.
    while current is not None and type(current).__name__ in _INNER_GRAPHS:
        current = current.outer_graph
    return current


def last_token() -> tf.Tensor:
    """Returns the token of the exchange before, as an int32 scalar to depend on."""
    current = graph()
    while current is not None:
        token = getattr(current, _TOKEN, None)
        if token is not None:
            return token
        current = current.outer_graph if type(current).__name__ in _INNER_GRAPHS else None
    return tf.constant(0)


def set_last_token(token: tf.Tensor) -> None:
    """Makes later exchanges of this graph depend on ``token``."""
    current = graph()
    if current is not None:
        setattr(current, _TOKEN, token)


@contextmanager
def after_pending_control_flow() -> Iterator[None]:
    """Makes ops added within the context run after control flow added since the last exchange."""
    # An exchange inside tf.cond leaves its token in the branch's graph, where nothing outside can
    # reach it.
    current = graph()
    if current is None:
        yield
        return
    operations = current.get_operations()
    pending = [op for op in operations[getattr(current, _SEEN, 0) :] if op.type in _CONTROL_FLOW]
    with tf.control_dependencies(pending):
        yield
    setattr(current, _SEEN, len(current.get_operations()))
