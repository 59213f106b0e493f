"""Steps of a worker that trains alone: their graphs count samples and the seconds for which they wait for data.

With several workers the exchange at the end of a step takes these numbers to Python. A worker that is alone has none, and
a call of Python from within a graph would cost half a millisecond in each step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np
import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.keras.tensorflow.step import count_samples, ready_at

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.types import BatchStep

P = ParamSpec("P")
R = TypeVar("R")
_numbers = itertools.count(1)


class CountedSteps:
    """The steps of one function of Keras on a worker that trains alone."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Samples and seconds. Not a `tf.Variable`: a variable without a class is seen by no strategy.
        with tf.init_scope(), tf.device("/cpu:0"):
            name = f"syrtos_counted_{next(_numbers)}"
            self._handle = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[2], shared_name=name)
            tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.zeros(2, tf.float64))
        self._told = np.zeros(2)

    def counting(self, step: BatchStep) -> BatchStep:
        """Wraps a step: its graph counts the samples of each batch, and for how long it has waited for it."""

        def counted(data: object) -> object:
            samples, rows = count_samples(data)
            asked, ready = tf.unstack(ready_at(rows))
            waited = tf.where(asked > 0, tf.maximum(ready - asked, 0.0), 0.0)
            with tf.device("/cpu:0"):
                added = tf.stack([tf.cast(samples, tf.float64), waited])
                tf.raw_ops.AssignAddVariableOp(resource=self._handle, value=added)
            return step(rows)

        return counted

    def telling(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wraps the function of such steps: after each call the ledger is told what its graph has counted."""

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            outputs = function(*args, **kwargs)
            with tf.device("/cpu:0"):
                counted = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.float64).numpy()
            samples, waited = counted - self._told
            self._told = counted
            self._session.ledger.count(float(samples))
            self._session.ledger.spend("input", float(waited))
            return outputs

        return call
