"""The `compute_gradients` of a distributed optimizer, whose gradients are reduced.

A script can clip or log the gradients before it applies them.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from syrtos.keras import keras_internals
from syrtos.keras.tensorflow import gradients
from syrtos.keras.tensorflow.variables import tensor_of


class ComputedGradients:
    """Methods that an optimizer gets in place of its own."""

    def __init__(self, optimizer: Any) -> None:
        """Replaces the methods of ``optimizer``, which is marked to reduce."""
        self._reducing = getattr(optimizer, "inner_optimizer", optimizer)
        kind = type(optimizer)  # an optimizer that is distributed again has such methods already
        self._compute = functools.partial(
            getattr(kind, "compute_gradients", None) or kind._compute_gradients, optimizer
        )
        self._minimize = functools.partial(kind.minimize, optimizer)
        self._minimizes = False
        for name in ("compute_gradients", "_compute_gradients", "minimize"):
            object.__setattr__(optimizer, name, getattr(self, name))

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """Returns pairs of reduced gradient and variable, of a loss that the tape has recorded or a function gives."""
        return self._compute_gradients(loss, var_list, tape=tape)

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        """Computes as `compute_gradients`, under its name in older versions of Keras 2."""
        options = {} if grad_loss is None else {"grad_loss": grad_loss}
        pairs = list(self._compute(loss, var_list, tape=tape, **options))
        if self._minimizes:
            return pairs
        variables = [variable for _, variable in pairs]
        reduced = gradients.reduce_for_script(self._reducing, [gradient for gradient, _ in pairs], variables)
        return list(zip(reduced, variables, strict=True))

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        """Minimizes as the optimizer does. Gradients are reduced when they are applied, since no script sees them."""
        gradients.forget_computed(self._reducing)
        self._minimizes, before = True, self._minimizes
        try:
            return self._minimize(*args, **kwargs)
        finally:
            self._minimizes = before


class Passes:
    """Horovod's ``_agg_helper``, for scripts that ask it how far an accumulation has come."""

    def __init__(self, optimizer: Any, steps: int) -> None:
        self._optimizer = optimizer
        self._steps = steps

    @property
    def counter(self) -> tf.Tensor:
        """The number of backward passes since the last update."""
        of_keras_3 = hasattr(self._optimizer, "gradient_accumulation_steps")  # there `iterations` counts updates
        calls = keras_internals.updates_of(self._optimizer) if of_keras_3 else self._optimizer.iterations
        return tf.math.floormod(tf.cast(tensor_of(calls), tf.int64), self._steps)
