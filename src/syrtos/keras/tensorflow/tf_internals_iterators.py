"""The private symbols of the iterators of `tf.data`. Seen to work on TensorFlow 2.21."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.framework.func_graph import FuncGraph

from syrtos.errors import DataError
from syrtos.keras.tensorflow import tf_internals_graphs
from syrtos.scopes import set_within


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


def _asked_handle() -> tf.Tensor:
    """Returns the handle of the variable that holds when data was asked for."""
    return variable_handle("syrtos_asked")


# The iterators that this thread has drawn from within `restoring_iterators`, each with its state
# before.
_States = dict[int, tuple[iterator_ops.OwnedIterator, tf.Tensor]]
_draws: ContextVar[_States | None] = ContextVar("draws", default=None)


@contextmanager
def restoring_iterators() -> Iterator[None]:
    """Restores `tf.data` iterators that this thread drew from eagerly, at the context's end.

    Drawing from one whose state can't be saved, e.g. of a Python generator, is a `DataError`.
    """
    states: _States = {}
    try:
        with set_within(_draws, states):
            yield
    finally:
        for iterator, serialized in states.values():
            tf.raw_ops.DeserializeIterator(
                resource_handle=iterator._iterator_resource, serialized=serialized
            )


def _note_draw(iterator: iterator_ops.OwnedIterator) -> None:
    """Saves the state of an iterator before the first draw."""
    # Iterators that this thread does not draw from are left alone: other threads may be drawing
    # from them.
    states = _draws.get()
    if states is None or id(iterator) in states:
        return
    # Of state outside of the pipeline, e.g. of random generators: draws of a trial are put back
    # elsewhere.
    ignore = 1
    try:
        serialized = tf.raw_ops.SerializeIterator(
            resource_handle=iterator._iterator_resource, external_state_policy=ignore
        )
    except tf.errors.OpError as error:
        raise DataError(
            "it draws from an iterator of tf.data whose place can't be saved"
        ) from error
    states[id(iterator)] = iterator, serialized


@functools.cache
def watch_iterators(waiting: Callable[[], AbstractContextManager[None]]) -> None:
    """Makes graphs note when they ask an iterator for data; eager calls run in ``waiting()``."""
    # Between a step's beginning and that moment is the call of its graph: half a millisecond that
    # is no waiting for data.
    original = iterator_ops.OwnedIterator._next_internal

    def next_internal(self: iterator_ops.OwnedIterator) -> object:
        if tf_internals_graphs.graph() is None:
            _note_draw(self)
            with waiting():
                return original(self)
        if not isinstance(tf_internals_graphs.graph(), FuncGraph):
            return original(self)
        with tf.device("/cpu:0"):
            noted = tf.raw_ops.AssignVariableOp(resource=_asked_handle(), value=tf.timestamp())
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
