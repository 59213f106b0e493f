"""The spellings of Keras 2, understood by Keras 3. Under Keras 2 (`tf_keras`) nothing changes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
import tensorflow as tf

from syrtos import settings
from syrtos.dialects import keras2_accumulation
from syrtos.errors import ConfigurationError
from syrtos.keras import keras_internals
from syrtos.keras.patching import Method, replace
from syrtos.launch.worker.import_hook import after_import
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from syrtos.dialects.protocols import (
        DialectModel,
        DialectOptimizer,
        DialectVariable,
        GradientAndVariable,
        Loss,
    )

Variables: TypeAlias = "Iterable[DialectVariable] | Callable[[], Iterable[DialectVariable]]"

_BASES = ("BaseOptimizer", "_BaseOptimizer", "OptimizerV2")


@dataclasses.dataclass
class _RateRecord:
    """The record of an optimizer: Keras 2's `decay` of its rate."""

    decay: float = 0.0


class _OptimizerOfKeras3(Protocol):
    """An optimizer of Keras 3; its other members are those of `DialectOptimizer`."""

    loss_scale_factor: float | None

    @property
    def iterations(self) -> Any:
        """The variable that counts updates."""
        ...

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the loss scale."""
        ...

    def apply_gradients(self, grads_and_vars: Iterable[GradientAndVariable]) -> object:
        """Makes an update."""
        ...


def is_legacy() -> bool:
    """Returns whether the script's Keras is Keras 2.

    It is if TF_USE_LEGACY_KERAS asks for it, or `tf_keras` has been imported.
    """
    return "tf_keras" in sys.modules or settings.environment().get("TF_USE_LEGACY_KERAS", "") in (
        "1",
        "True",
        "true",
    )


def keras() -> types.ModuleType:
    """Returns the script's Keras."""
    return importlib.import_module("tf_keras" if is_legacy() else "keras")


def is_optimizer(candidate: object) -> bool:
    """Returns whether ``candidate`` is an optimizer of Keras."""
    # By names: `isinstance` would need both versions of Keras imported.
    modules = ("keras.", "tf_keras.")
    return any(
        base.__name__ in _BASES and base.__module__.startswith(modules)
        for base in type(candidate).__mro__
    )


def accumulate(optimizer: DialectOptimizer, steps: int) -> None:
    """Makes an optimizer apply the mean gradient of every ``steps`` calls.

    Raises:
        ConfigurationError: an optimizer of Keras 3 has made steps already.
    """
    if not hasattr(optimizer, "gradient_accumulation_steps"):
        keras2_accumulation.accumulate(optimizer, steps)
        return
    # Keras 3 makes the variables in which it adds gradients up when an optimizer is built.
    if optimizer.built:
        raise ConfigurationError(
            "backward_passes_per_step must be given before the optimizer's first step."
        )
    optimizer.gradient_accumulation_steps = steps


def velocities(optimizer: DialectOptimizer, model: DialectModel) -> Sequence[DialectVariable]:
    """Returns the variables in which an optimizer with momentum adds up its updates.

    There are none before the optimizer's first step.
    """
    # Of old Keras 2, where `get_slot` fails before the first step.
    if hasattr(optimizer, "get_slot"):
        known = set(optimizer.get_slot_names())
        return (
            [optimizer.get_slot(v, "momentum") for v in model.trainable_variables]
            if "momentum" in known
            else []
        )
    return cast("list[DialectVariable]", keras_internals.momentums_of(optimizer))


def build(optimizer: DialectOptimizer | None, model: DialectModel) -> None:
    """Makes the optimizer's variables if the model has its weights."""
    # `_built` is what Keras 2 calls it. Old Keras 2 has neither it nor `build`.
    built = getattr(optimizer, "built", getattr(optimizer, "_built", False))
    if (
        optimizer is not None
        and model.trainable_variables
        and not built
        and hasattr(optimizer, "build")
    ):
        optimizer.build(list(model.trainable_variables))


@functools.cache
def install_once_imported() -> None:
    """Teaches Keras 3 the spellings of Keras 2 as soon as the script has imported Keras 3."""
    after_import("keras", install)


@functools.cache
def install() -> None:
    """Teaches Keras 3 the spellings of Keras 2."""
    # Under `tf_keras` the script has the original.
    if is_legacy():
        return
    base = keras().Optimizer
    _patch_base_optimizer(base)
    _patch_models(keras().Model)
    _patch_layers_and_metrics()
    keras().Variable.ref = lambda self: self.value.ref()
    for found in _keras_packages():
        _add_legacy_optimizers(found, base)
        _add_backend_functions(found)
        _add_functions(found)
        found.utils.experimental = types.SimpleNamespace(DatasetCreator=DatasetCreator)


class _Callable(list["DialectVariable"]):
    """A callable list, so that `optimizer.variables` and `optimizer.variables()` are the same."""

    def __call__(self) -> list[DialectVariable]:
        return self


def _callable_variables(
    original: Callable[[DialectOptimizer], Iterable[DialectVariable]],
) -> property:
    return property(lambda self: _Callable(original(self)))


def _patch_base_optimizer(base: Any) -> None:
    """Gives the base class of Keras 3's optimizers the attributes and methods of Keras 2's."""
    # The class for loss scales has a `variables` of its own.
    for cls in (base, keras().optimizers.LossScaleOptimizer):
        cls.variables = _callable_variables(cls.variables.fget)
    base.lr = property(
        lambda self: self.learning_rate, lambda self, rate: setattr(self, "learning_rate", rate)
    )
    base.compute_gradients = _compute_gradients
    base.minimize = _minimize
    replace(base, "_get_current_learning_rate", _decay_rate)
    for optimizer in _classes(keras().optimizers, base).values():
        replace(optimizer, "__init__", _old_arguments)


def _compute_gradients(
    self: _OptimizerOfKeras3, loss: Loss, var_list: Variables, tape: tf.GradientTape | None = None
) -> list[GradientAndVariable]:
    """Returns pairs of gradient and variable.

    The loss is one that the tape has recorded or that a function returns.

    Raises:
        ConfigurationError: the optimizer scales losses, so the gradients would be scaled.
    """
    if _scales_losses(self):
        raise ConfigurationError(
            "Keras 3 divides gradients by the loss scale when they are applied, so"
            " `compute_gradients` would return scaled ones. Use `optimizer.minimize`, or"
            " `tape.gradient(optimizer.scale_loss(loss), variables)` and `optimizer.apply`."
        )
    return _gradients(self, loss, var_list, tape)


def _scales_losses(optimizer: _OptimizerOfKeras3) -> bool:
    # A `LossScaleOptimizer` has an inner optimizer; others may be given a fixed factor.
    return hasattr(optimizer, "inner_optimizer") or optimizer.loss_scale_factor is not None


def _gradients(
    optimizer: _OptimizerOfKeras3, loss: Loss, var_list: Variables, tape: tf.GradientTape | None
) -> list[GradientAndVariable]:
    if not callable(loss) and tape is None:
        raise ValueError(
            "`tape` is required when a tensor is given as the loss: the one that recorded it."
        )
    tape = tape or tf.GradientTape()
    if callable(loss) or _scales_losses(optimizer):
        with tape:
            loss = optimizer.scale_loss(loss() if callable(loss) else loss)
    # TensorFlow's stubs know no variables of Keras.
    variables: list[Any] = list(var_list() if callable(var_list) else var_list)
    return list(zip(tape.gradient(loss, variables), variables, strict=True))


def _minimize(
    self: _OptimizerOfKeras3, loss: Loss, var_list: Variables, tape: tf.GradientTape | None = None
) -> None:
    """Computes the gradients of a loss (or of what a function returns) and applies them."""
    self.apply_gradients(_gradients(self, loss, var_list, tape))


def _add_legacy_optimizers(found: types.ModuleType, base: type) -> None:
    """Adds today's optimizers to `keras.optimizers.legacy` and `keras.optimizers.experimental`."""
    known = {**_classes(found.optimizers, base), "Optimizer": found.optimizers.Optimizer}
    for name, optimizer in known.items():
        setattr(found.optimizers.legacy, name, optimizer)
    found.optimizers.experimental = types.SimpleNamespace(**known)


def _classes(module: types.ModuleType, base: type) -> dict[str, type]:
    # A class that inherits its `__init__` has the replacement of its parent's.
    return {
        n: c
        for n, c in vars(module).items()
        if isinstance(c, type) and issubclass(c, base) and "__init__" in vars(c)
    }


def _old_arguments(original: Method) -> Method:
    """Wraps an optimizer's `__init__`, which then takes ``lr`` and ``decay``.

    ``lr`` is the learning rate, and ``decay`` divides it by ``1 + decay * step``.
    """

    def init(
        self: object, *args: object, lr: object = None, decay: float = 0.0, **kwargs: object
    ) -> None:
        if lr is not None:
            kwargs["learning_rate"] = lr
        original(self, *args, **kwargs)
        record_of(self, _RateRecord).decay = decay

    return init


def _decay_rate(
    original: Callable[[_OptimizerOfKeras3], tf.Tensor],
) -> Callable[[_OptimizerOfKeras3], tf.Tensor]:
    """Wraps an optimizer's rate of a step with the decay.

    `learning_rate` itself stays what the script sets.
    """

    def current_rate(self: _OptimizerOfKeras3) -> tf.Tensor:
        rate, decay = original(self), read_record(self, _RateRecord).decay
        return rate / (1.0 + decay * tf.cast(self.iterations.value, tf.float32)) if decay else rate

    return current_rate


def _patch_models(model: type) -> None:
    # Where Keras defines it: Keras takes a `compile` of another class for the script's own.
    trainer = next(base for base in model.__mro__ if "compile" in vars(base))
    replace(trainer, "compile", _dropping_arguments("experimental_run_tf_function"))
    for name in ("fit", "evaluate", "predict"):
        replace(
            model,
            name,
            _dropping_arguments("workers", "use_multiprocessing", "max_queue_size"),
        )
        setattr(model, f"{name}_generator", _from_generator(name))
    for name in ("fit", "evaluate"):
        replace(model, name, _from_creator)


class DatasetCreator:
    """`keras.utils.experimental.DatasetCreator`: a function that makes a data set.

    The data set is that of one process; each worker takes its share of it.
    """

    def __init__(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        input_options: object = None,
    ) -> None:
        self.dataset_fn = dataset_fn
        self.input_options = input_options


def _from_creator(original: Method) -> Method:
    def method(self: object, x: object = None, *args: object, **kwargs: object) -> object:
        # A context of one worker: `fit` itself splits what the function makes.
        made = x.dataset_fn(tf.distribute.InputContext()) if isinstance(x, DatasetCreator) else x
        return original(self, made, *args, **kwargs)

    return method


def _dropping_arguments(*arguments: str) -> Callable[[Method], Method]:
    """Returns a wrapper that drops arguments that Keras 3 does not have, and says so once."""

    def wrapper(original: Method) -> Method:
        def method(self: object, *args: object, **kwargs: object) -> object:
            for name in arguments:
                if name in kwargs:
                    del kwargs[name]
                    _say_once(f"`{name}` means nothing to Keras 3 and is ignored; remove it.")
            return original(self, *args, **kwargs)

        # Keras reads a layer's signature, and binds its config to it.
        vars(method)["__signature__"] = inspect.signature(original)
        return method

    return wrapper


# The arguments after the generator, in the order of Keras 2.
_POSITIONAL = {
    "fit": (
        "steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data", "validation_steps", "validation_freq",
        "class_weight", "max_queue_size", "workers", "use_multiprocessing", "shuffle", "initial_epoch",
    ),
    "evaluate": ("steps", "callbacks", "max_queue_size", "workers", "use_multiprocessing", "verbose"),
    "predict": ("steps", "callbacks", "max_queue_size", "workers", "use_multiprocessing", "verbose"),
}  # fmt: skip


def _from_generator(name: str) -> Method:
    def method(self: object, generator: object, *args: object, **kwargs: object) -> object:
        _say_once(f"`{name}_generator` is `{name}` today.")
        if len(args) > len(_POSITIONAL[name]):
            raise TypeError(
                f"{name}_generator takes {len(_POSITIONAL[name])} arguments after the generator."
                f" Received: {len(args)}."
            )
        return getattr(self, name)(
            generator, **dict(zip(_POSITIONAL[name], args, strict=False)), **kwargs
        )

    method.__name__ = f"{name}_generator"
    return method


@functools.cache
def _say_once(text: str) -> None:
    print(f"syrtos: {text}", file=sys.stderr)


def _add_backend_functions(found: types.ModuleType) -> None:
    """Adds `K.get_value(optimizer.lr)` and `K.set_value(optimizer.lr, 0.1)`."""
    found.backend.get_value = lambda x: np.asarray(x)
    found.backend.set_value = lambda x, value: x.assign(value)


def _add_functions(found: types.ModuleType) -> None:
    """Adds a layer that is gone, and losses and metrics as functions.

    `tf.keras` has fewer of these functions than `keras`.
    """
    for room in ("losses", "metrics"):
        public = getattr(found, room)
        for name, function in vars(getattr(keras(), room)).items():
            if callable(function) and not hasattr(public, name):
                setattr(public, name, function)
    if not hasattr(found.layers, "ThresholdedReLU"):
        found.layers.ThresholdedReLU = importlib.import_module(
            "keras.src.legacy.layers"
        ).ThresholdedReLU


def _patch_layers_and_metrics() -> None:
    """Adds `metric.reset_states()`, and lets BatchNormalization take ``fused``."""
    keras().metrics.Metric.reset_states = lambda self: self.reset_state()
    # `fused` chose between two ways of computing the same.
    replace(keras().layers.BatchNormalization, "__init__", _dropping_arguments("fused"))


def _keras_packages() -> list[types.ModuleType]:
    """Returns `keras` and `tf.keras`, which have the same classes in different modules."""
    return [keras(), importlib.import_module("keras._tf_keras.keras")]
