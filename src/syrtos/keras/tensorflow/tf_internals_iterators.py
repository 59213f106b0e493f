"""The private symbols of the iterators of `tf.data`. Seen to work on TensorFlow 2.21."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.framework import config
from tensorflow.python.framework.func_graph import FuncGraph

from syrtos.keras.tensorflow import tf_internals_graphs

# Functions of Keras 2's layers that are saved with them, and may hold no variable of syrtos.
_SAVED = frozenset(("adapt_step",))


@functools.cache
def variable_handle(name: str, *shape: int) -> tf.Tensor:
    """Returns the handle of a float64 variable of this process, which no strategy sees.

    It begins with zeros.
    """
    # Not by `tf.Variable`: a variable without a class is seen by no strategy.
    with tf.init_scope(), tf.device("/cpu:0"):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=shape, shared_name=name)
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros(shape, tf.float64))
        return handle


def timestamp() -> tf.Tensor:
    """Returns an operation that reads the clock, float64 seconds since the epoch."""
    # After `tf.config.experimental.enable_op_determinism` TensorFlow refuses its own clock.
    if not config.is_op_determinism_enabled():
        return tf.timestamp()
    now = tf.numpy_function(lambda: np.float64(time.time()), [], tf.float64, stateful=True)
    return tf.ensure_shape(now, [])


def _asked_handle() -> tf.Tensor:
    """Returns the handle of the variable that holds when data was asked for."""
    return variable_handle("syrtos_asked")


@functools.cache
def watch_iterators(waiting: Callable[[], AbstractContextManager[None]]) -> None:
    """Makes graphs note when they ask an iterator for data; eager calls run in ``waiting()``."""
    # Between a step's beginning and that moment is the call of its graph: half a millisecond that
    # is no waiting for data.
    original = iterator_ops.OwnedIterator._next_internal

    def next_internal(self: iterator_ops.OwnedIterator) -> object:
        if tf_internals_graphs.graph() is None:
            with waiting():
                return original(self)
        graph = tf_internals_graphs.graph()
        if not isinstance(graph, FuncGraph) or graph.name in _SAVED:
            return original(self)
        with tf.device("/cpu:0"):
            noted = tf.raw_ops.AssignVariableOp(resource=_asked_handle(), value=timestamp())
        with tf.control_dependencies([noted]):
            return original(self)

    iterator_ops.OwnedIterator._next_internal = next_internal


def forget_asking() -> None:
    """Makes `asked_at` return 0 until a graph asks for data again."""
    if not tf.executing_eagerly() and isinstance(tf_internals_graphs.graph(), FuncGraph):
        with tf.device("/cpu:0"):
            tf.raw_ops.AssignVariableOp(
                resource=_asked_handle(), value=tf.constant(0.0, tf.float64)
            )


def asked_at() -> tf.Tensor:
    """Returns the time when a graph last asked for data, float64 seconds since the epoch.

    It is 0 if no graph has asked, and eagerly.
    """
    if tf.executing_eagerly() or not isinstance(tf_internals_graphs.graph(), FuncGraph):
        return tf.constant(0.0, tf.float64)
    with tf.device("/cpu:0"):
        return tf.raw_ops.ReadVariableOp(resource=_asked_handle(), dtype=tf.float64)
