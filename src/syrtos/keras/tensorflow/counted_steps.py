"""Steps of a lone Keras 3 worker: their graphs count samples and the seconds of waiting for data.

With several workers the exchange at the end of a step takes these numbers to Python. A worker that
is alone exchanges nothing: a call of Python from within its graph, for them alone, took 0.3 to 0.6
of the 2.1 ms of a small step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.keras.tensorflow import tf_internals_iterators
from syrtos.keras.tensorflow.step import count_samples, ready_at
from syrtos.keras.trainer import timing

if TYPE_CHECKING:
    from syrtos.keras.protocols import P, R
    from syrtos.keras.tensorflow.types import BatchStep


class _Counter:
    """A variable of all graphs of this process: samples and seconds so far, float64, shape (2,)."""

    def __init__(self) -> None:
        self._handle = tf_internals_iterators.variable_handle("syrtos_counted", 2)
        self._reported = np.zeros(2)

    def add(self, samples: tf.Tensor, seconds: tf.Tensor) -> None:
        tf.raw_ops.AssignAddVariableOp(resource=self._handle, value=tf.stack([samples, seconds]))

    def read_new(self) -> tuple[float, float]:
        """Returns what was added since the last time."""
        with tf.device("/cpu:0"):
            counted = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.float64).numpy()
        samples, seconds = counted - self._reported
        self._reported = counted
        return float(samples), float(seconds)


_counter = functools.cache(_Counter)


def count_in_graph(step: BatchStep) -> BatchStep:
    """Wraps a step: its graph counts each batch's samples and the time spent waiting for them."""

    def count_and_call(data: object) -> object:
        samples, rows = count_samples(data)
        # On the processor: a GPU would send each of these numbers there and back.
        with tf.device("/cpu:0"):
            asked, ready = tf.unstack(ready_at(rows))
            waited = tf.where(asked > 0, tf.maximum(ready - asked, 0.0), 0.0)
            # Graphs of several steps ask in another way, which is not noted: else this time would
            # count again for them.
            tf_internals_iterators.forget_asking()
            _counter().add(tf.cast(samples, tf.float64), waited)
        return step(rows)

    return count_and_call


def report_after(session: Session, function: Callable[P, R]) -> Callable[P, R]:
    """Wraps the function of such steps: after each call the ledger gets the counts of its graph."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # In a loop of the script's own the record of a step is written when this ends.
        with timing.computing():
            outputs = function(*args, **kwargs)
            samples, waited = _counter().read_new()
            session.ledger.count(samples)
            session.ledger.spend("input", waited)
        return outputs

    return call
