"""Accumulation of several steps' gradients, for optimizers of Keras 2; those of Keras 3 have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf

if TYPE_CHECKING:
    from syrtos.dialects.protocols import DialectOptimizer, DialectVariable, GradientAndVariable


def accumulate(optimizer: DialectOptimizer, steps: int) -> None:
    """Makes a Keras 2 optimizer apply the mean gradient of every ``steps`` `apply_gradients` calls.

    ``iterations`` counts all calls, as Horovod's do.
    """
    # Keras's own `__setattr__` tracks what it is given.
    object.__setattr__(optimizer, "apply_gradients", _Accumulation(optimizer, steps))


class _Accumulation:
    """A replacement for an optimizer's `apply_gradients`."""

    def __init__(self, optimizer: DialectOptimizer, steps: int) -> None:
        self._optimizer = optimizer
        self._apply = optimizer.apply_gradients
        self._steps = steps
        self._sums: list[tf.Variable] = []
        self._calls: tf.Variable | None = None

    def __call__(
        self, grads_and_vars: Iterable[GradientAndVariable], *args: Any, **kwargs: Any
    ) -> tf.Tensor:
        """Adds the gradients up, and applies their mean if this is the last of ``steps`` calls."""
        pairs = [
            (gradient, variable) for gradient, variable in grads_and_vars if gradient is not None
        ]
        variables = [variable for _, variable in pairs]
        calls = self._begin(variables)
        added = [
            s.assign_add(tf.convert_to_tensor(g))
            for s, (g, _) in zip(self._sums, pairs, strict=True)
        ]
        with tf.control_dependencies(added):
            due = tf.equal(calls.assign_add(1) % self._steps, 0)

        def apply() -> tf.Tensor:
            means = [total / tf.cast(self._steps, total.dtype) for total in self._sums]
            self._apply(zip(means, variables, strict=True), *args, **kwargs)
            # The sums are set to zero after they have been read.
            with tf.control_dependencies(means):
                for total in self._sums:
                    total.assign(tf.zeros_like(total))
            return tf.identity(self._optimizer.iterations)

        # The update itself counts a call.
        return tf.cond(due, apply, lambda: tf.identity(self._optimizer.iterations.assign_add(1)))

    def _begin(self, variables: Sequence[DialectVariable]) -> tf.Variable:
        """Makes the sums and the optimizer's own variables once; returns the count of calls."""
        # Outside of any graph, and once: a `tf.function` may create variables in its first trace
        # alone.
        if self._calls is None:
            with tf.init_scope():
                self._sums = [
                    tf.Variable(tf.zeros(v.shape, cast("tf.DType", v.dtype)), trainable=False)
                    for v in variables
                ]
                self._calls = tf.Variable(tf.zeros([], tf.int64), trainable=False)
                if hasattr(self._optimizer, "build"):
                    self._optimizer.build(list(variables))
        return self._calls
