"""Patches of optimizers and layers of Keras 2 (`tf_keras`) for workers of parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import tensorflow as tf
from tf_keras.src.optimizers import nadam
from tf_keras.src.optimizers import utils as optimizer_utils

from syrtos.errors import ConfigurationError
from syrtos.keras import keras_internals
from syrtos.keras.features import asynchronous
from syrtos.keras.patching import Method
from syrtos.keras.tensorflow import gradients
from syrtos.keras.tensorflow.parameter_server import remote_optimizer

if TYPE_CHECKING:
    from syrtos.keras.protocols import Counter, Optimizer, P, R, Variable
    from syrtos.keras.tensorflow.types import Gradient

    Pairs = Iterable[tuple[Gradient | None, Variable]]

    class _Optimizer(Optimizer, Protocol):
        @property
        def iterations(self) -> Counter: ...

        def _compute_current_learning_rate(self) -> object: ...


def is_all_finite_everywhere(original: Method) -> Method:
    """Wraps the check of `LossScaleOptimizer`: on servers' workers it asks all of them."""

    def is_all_finite(grads: object) -> tf.Tensor:
        # Without servers these are the gradients of all workers already.
        finite = original(grads)
        return gradients.finite_everywhere(None, finite) if asynchronous.servers() else finite

    return is_all_finite


def noting_variables(original: Method) -> Method:
    """Wraps `_build_index_dict`: with servers an optimizer notes the variables it was built for."""

    def build_index_dict(self: object, var_list: Iterable[object]) -> None:
        original(self, var_list)
        if asynchronous.servers():
            keras_internals.note_built(self, list(var_list))

    return build_index_dict


def on_servers(original: Method) -> Method:
    """Wraps `apply_gradients`: parameter servers, if there are any, make the update.

    The optimizer here counts the update.
    """

    def apply_gradients(self: _Optimizer, grads_and_vars: Pairs, name: str | None = None) -> object:
        if not asynchronous.servers():
            return original(self, grads_and_vars, name)
        # It counts in Python how often it has been traced.
        if isinstance(self, nadam.Nadam):
            _refuse_on_servers("the Nadam of Keras 2")
        pairs = list(grads_and_vars)
        # Variables can't be made within a function that is traced more than once.
        with tf.init_scope():
            self.build([variable for _, variable in pairs])
        self._compute_current_learning_rate()
        grads, variables = zip(*optimizer_utils.filter_empty_gradients(pairs), strict=True)
        remote_optimizer.apply(self, grads, variables)
        return self.iterations.assign_add(1)

    return apply_gradients


def not_on_servers(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps `apply_gradients` of optimizers that parameter servers can't apply."""

    def apply_gradients(*args: P.args, **kwargs: P.kwargs) -> R:
        if asynchronous.servers():
            _refuse_on_servers("one of `tf.keras.optimizers.legacy`")
        return original(*args, **kwargs)

    return apply_gradients


def _refuse_on_servers(which: str) -> None:
    raise ConfigurationError(
        f"Parameter servers (`--ps`) can't apply this optimizer: it is {which}. Use another of"
        " `tf.keras.optimizers`, or run without `--ps`."
    )


def noting_keras(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps `add_weight`: variables of Keras are told from those of the script."""

    def add_weight(*args: P.args, **kwargs: P.kwargs) -> R:
        variable = original(*args, **kwargs)
        if asynchronous.asynchronous_servers():
            # One for mixed precision has the variable inside of it.
            asynchronous.note_keras(getattr(variable, "_variable", variable))
        return variable

    return add_weight
