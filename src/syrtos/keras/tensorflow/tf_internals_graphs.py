"""What TensorFlow keeps private of the graphs of functions, conditionals and loops. Seen to work on TensorFlow 2.21."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

_TOKEN = "_syrtos_token"
_SEEN = "_syrtos_seen"
# Bodies of tf.cond and tf.while_loop: they may use tensors of the graph around them, functions may not.
_INNER_GRAPHS = ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")
# Ops whose bodies may hold exchanges.
_CONTROL_FLOW = ("If", "While", "StatefulPartitionedCall")


def graph() -> Any:
    """The graph that ops are added to now, or None when they run eagerly."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def is_of_dataset() -> bool:
    """Whether ops are added to a function of a `tf.data` pipeline now, which TensorFlow names after the method."""
    current = graph()
    while current is not None:
        if str(getattr(current, "name", "")).startswith("Dataset_"):
            return True
        current = getattr(current, "outer_graph", None)
    return False


def always_runs_with(outer: Any) -> bool:
    """Whether ops added now run whenever those of the graph ``outer`` do: no conditional or loop lies between."""
    current = graph()
    while current is not None and current is not outer:
        if type(current).__name__ in _INNER_GRAPHS:
            return False
        current = getattr(current, "outer_graph", None)
    return current is outer


def same_function() -> Callable[[], bool]:
    """Tells later whether the same `tf.function` is being traced as now, conditionals and loops included, or as now none is."""
    graph = _function_graph()
    reference = None if graph is None else weakref.ref(graph)

    def is_same() -> bool:
        current = _function_graph()
        return current is None if reference is None else current is not None and reference() is current

    return is_same


def _function_graph() -> Any:
    current = graph()
    while type(current).__name__ in _INNER_GRAPHS:
        current = current.outer_graph
    return current


def last_token() -> tf.Tensor:
    """The token of the exchange before, as an int32 scalar to depend on."""
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
    """Orders what is added inside behind conditionals and loops added since the last exchange.

    An exchange inside tf.cond leaves its token in the branch's graph, where nothing outside can reach it.
    """
    current = graph()
    if current is None:
        yield
        return
    operations = current.get_operations()
    pending = [op for op in operations[getattr(current, _SEEN, 0) :] if op.type in _CONTROL_FLOW]
    with tf.control_dependencies(pending):
        yield
    setattr(current, _SEEN, len(current.get_operations()))
