"""The `compute_gradients` of a distributed optimizer, whose gradients are reduced.

A script can clip or log the gradients before it applies them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from syrtos.keras import keras_internals
from syrtos.keras.tensorflow import gradients
from syrtos.keras.tensorflow.variables import tensor_of

if TYPE_CHECKING:
    from syrtos.dialects.protocols import (
        DialectOptimizer,
        DialectVariable,
        GradientAndVariable,
        Loss,
    )


class ComputedGradients:
    """Methods that an optimizer gets in place of its own."""

    def __init__(self, optimizer: DialectOptimizer) -> None:
        """Replaces the methods of ``optimizer``, which was asked to reduce."""
        self._reducing = getattr(optimizer, "inner_optimizer", optimizer)
        # Of the class: an optimizer that is distributed again has methods such as these already.
        kind = type(optimizer)
        self._compute: Callable[..., Iterable[GradientAndVariable]] = functools.partial(
            getattr(kind, "compute_gradients", None) or kind._compute_gradients, optimizer
        )
        self._minimize = functools.partial(kind.minimize, optimizer)
        self._minimizes = False
        # Keras's own `__setattr__` tracks what it is given.
        for name in ("compute_gradients", "_compute_gradients", "minimize"):
            object.__setattr__(optimizer, name, getattr(self, name))

    def compute_gradients(
        self, loss: Loss, var_list: Sequence[DialectVariable], tape: tf.GradientTape | None = None
    ) -> list[GradientAndVariable]:
        """Returns pairs of reduced gradient and variable.

        The loss is one that the tape has recorded or that a function returns.
        """
        return self._compute_gradients(loss, var_list, tape=tape)

    def _compute_gradients(
        self,
        loss: Loss,
        var_list: Sequence[DialectVariable],
        grad_loss: tf.Tensor | None = None,
        tape: tf.GradientTape | None = None,
    ) -> list[GradientAndVariable]:
        """Computes as `compute_gradients`, under its name in older versions of Keras 2."""
        options = {} if grad_loss is None else {"grad_loss": grad_loss}
        pairs = list(self._compute(loss, var_list, tape=tape, **options))
        # `minimize` applies them at once, which reduces them.
        if self._minimizes:
            return pairs
        variables = [variable for _, variable in pairs]
        reduced = gradients.reduce_for_script(
            self._reducing, [gradient for gradient, _ in pairs], variables
        )
        return list(zip(reduced, variables, strict=True))

    def minimize(self, *args: Any, **kwargs: Any) -> object:
        """Minimizes as the optimizer does."""
        # No script sees the gradients, so that they are reduced when they are applied.
        gradients.forget_computed(self._reducing)
        self._minimizes, before = True, self._minimizes
        try:
            return self._minimize(*args, **kwargs)
        finally:
            self._minimizes = before


class Passes:
    """Horovod's ``_agg_helper``, for scripts that ask it how far an accumulation has come."""

    def __init__(self, optimizer: DialectOptimizer, steps: int) -> None:
        self._optimizer = optimizer
        self._steps = steps

    @property
    def counter(self) -> tf.Tensor:
        """The number of backward passes since the last update."""
        # The `iterations` of Keras 3 count updates, and those of `syrtos.dialects.keras2_accumulation`
        # passes.
        of_keras_3 = hasattr(self._optimizer, "gradient_accumulation_steps")
        calls = (
            keras_internals.updates_of(self._optimizer)
            if of_keras_3
            else self._optimizer.iterations
        )
        return tf.math.floormod(tf.cast(tensor_of(calls), tf.int64), self._steps)
