"""Private symbols of Keras's models and optimizers that syrtos reads.

Seen on Keras 3.12.4, 3.15.1 and tf_keras 2.21.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syrtos.keras.datasets.planned import Stream

# Set on an optimizer of Keras 2: the variables it was built for.
BUILT_FOR = "_syrtos_built_for"
# Optimizers that treat each number of a variable by itself.
ELEMENTWISE = frozenset({"SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Nadam", "Ftrl", "Lion"})


def stream_of(iterator: Any) -> Stream | None:
    """Returns the shares of a planned data set that an iterator of Keras goes through; None for other data."""
    return getattr(getattr(iterator, "data_adapter", None), "syrtos_stream", None)


def keras_of(optimizer: Any) -> Any:
    """Returns the package that an optimizer's or model's class is derived from: Keras 3, or Keras 2 (`tf_keras`)."""
    legacy = any(base.__module__.startswith("tf_keras.") for base in type(optimizer).__mro__)
    return sys.modules["tf_keras" if legacy else "keras"]


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the variables of an optimizer of Keras 3, as its first update does; Keras 2 makes them outside of any trace."""
    keras: Any = keras_of(optimizer)
    if keras.__name__ == "keras" and not getattr(optimizer, "built", True):
        with keras.src.backend.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(list(variables))
        optimizer.built = True


def trained_by(optimizer: Any) -> list[Any]:
    """Returns the variables an optimizer was built for, in the order in which it numbers them.

    Its `variables` has its own alone. Keras 2 keeps only the numbers of the others: `tensorflow.keras2` notes them.
    """
    noted = getattr(optimizer, BUILT_FOR, None)
    return list(optimizer._trainable_variables if noted is None else noted)


def path_of(variable: Any) -> str:
    """Returns the name after which Keras names the slots of a variable.

    `keras.Variable` has a path, and Keras 2 takes TensorFlow's name without its output.
    """
    return getattr(variable, "path", None) or variable._shared_name


def slot_of(slot: Any, paths: Sequence[str]) -> tuple[str, str | None]:
    """Returns what an optimizer's variable is, e.g. "momentum", and the path of the variable it belongs to.

    The path is one of ``paths``; None if the slot belongs to all variables together. Keras 3 names the slot
    ``layer_kernel_momentum``, Keras 2 ``SGD/m/layer/kernel``.
    """
    if hasattr(slot, "path"):
        fits = [p for p in paths if slot.name.startswith(p.replace("/", "_") + "_")]
        path = max(fits, key=len, default=None)
        return (slot.name, None) if path is None else (slot.name.removeprefix(path.replace("/", "_") + "_"), path)
    name = slot._shared_name
    path = max((p for p in paths if name.endswith(f"/{p}")), key=len, default=None)
    return name.removesuffix(f"/{path}").rpartition("/")[2], path


def updates_of(optimizer: Any) -> Any:
    """Returns the variable that counts an optimizer's updates, or its steps where Keras 3 accumulates gradients.

    `iterations` of Keras 3 divides it then.
    """
    return optimizer._iterations


def loss_scale_of(optimizer: Any) -> list[Any]:
    """Returns the variables for the scale of a `LossScaleOptimizer` of Keras 2, which its `variables` leave out."""
    scale = getattr(optimizer, "_loss_scale", None)
    return [getattr(scale, name) for name in ("_current_loss_scale", "_counter") if hasattr(scale, name)]


def accumulated_by(optimizer: Any) -> list[Any]:
    """Returns the variables in which an optimizer of Keras 3 adds up the gradients of several steps."""
    return [variable for variable in getattr(optimizer, "_accumulated_gradients", None) or [] if variable is not None]


def averages_of(optimizer: Any) -> list[Any]:
    """Returns the moving averages of weights that an optimizer of Keras 3 keeps with ``use_ema``.

    They take the place of the weights when `fit` ends.
    """
    return list(getattr(optimizer, "_model_variables_moving_average", None) or [])


def layers_of(model: Any) -> list[Any]:
    """Returns all layers of a model, at any depth; its `layers` has its own alone.

    The method has the same name in Keras 3 and Keras 2 (2.21).
    """
    return list(model._flatten_layers())


def compiled_parts(model: Any) -> list[Any]:
    """Returns the objects that a script has given `compile` as losses and metrics.

    They stand in `_compile_loss` and `_compile_metrics` of Keras 3, which a model lists once it has used them.
    """
    loss, metrics = getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)
    waiting = [getattr(loss, "_user_loss", None)]
    waiting += [getattr(metrics, name, None) for name in ("_user_metrics", "_user_weighted_metrics")]
    found: list[Any] = []
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
        elif hasattr(part, "reduction") or hasattr(part, "update_state"):
            found.append(part)
    return found


def momentums_of(optimizer: Any) -> list[Any]:
    """Returns the velocities of an optimizer with momentum.

    They are public in SGD, and `_momentums` in RMSprop, Adam, Nadam and Lion, of Keras 3 and 2.21.
    """
    return list(getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or [])


def moments_of(optimizer: Any) -> tuple[list[Any], list[Any], float, float] | None:
    """Returns Adam's first and second moments, and the factors by which they decay; None for other optimizers.

    They are `_momentums` and `_velocities` in Keras 3.
    """
    first, second = (list(getattr(optimizer, name, None) or []) for name in ("_momentums", "_velocities"))
    rates: list[Any] = [getattr(optimizer, name, None) for name in ("beta_1", "beta_2")]
    return (first, second, float(rates[0]), float(rates[1])) if first and second and None not in rates else None


def rate_of(optimizer: Any) -> Any:
    """Returns the variable of an optimizer's rate, or its schedule.

    `learning_rate` gives a schedule's number of the moment.
    """
    return optimizer._learning_rate


def has_schedule(optimizer: Any) -> bool:
    """Returns whether an optimizer's rate follows a schedule; `learning_rate` gives the number of the moment."""
    return isinstance(rate_of(optimizer), keras_of(optimizer).optimizers.schedules.LearningRateSchedule)


def has_fixed_rate(optimizer: Any) -> bool:
    """Returns whether an optimizer's rate is a number of its own, which can be set: no schedule, and no function."""
    return hasattr(rate_of(optimizer), "assign")


def give_fixed_rate(optimizer: Any, rate: float) -> None:
    """Puts a number in the place of an optimizer's schedule, among its variables as if it had been made with one."""
    if hasattr(optimizer, "_build_learning_rate"):  # Keras 2
        optimizer._learning_rate = optimizer._build_learning_rate(rate)
        return
    keras = sys.modules["keras"]
    variable = keras.Variable(
        rate, name="learning_rate", dtype=keras.config.floatx(), trainable=False, aggregation="only_first_replica"
    )
    optimizer._track_variable(variable)
    optimizer._learning_rate = variable


def decays(optimizer: Any, variable: Any) -> bool:
    """Returns whether an optimizer's weight decay takes in this variable.

    Keras has a public method that sets this, and none that tells it.
    """
    return optimizer._use_weight_decay(variable)


def clip(optimizer: Any, gradients: list[Any]) -> list[Any]:
    """Clips gradients as an optimizer was told to; its public methods do so only on the way to an update."""
    return list(optimizer._clip_gradients(gradients))


def call_at_once(callback_list: Any) -> None:
    """Makes Keras 3 on JAX call callbacks in the training thread.

    In threads of their own, workers would exchange in any order.
    """
    for name in ("_async_train", "_async_test", "_async_predict"):
        if hasattr(callback_list, name):
            setattr(callback_list, name, False)


def set_state(model: Any, state: Sequence[Any]) -> None:
    """Gives a model on JAX the state that its training function has returned.

    The trainer itself keeps record of that only after the call.
    """
    kinds = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
    model._jax_state = dict(zip(kinds, state, strict=True))
    model.jax_state_sync()


def trains_outside(model: Any) -> bool:
    """Returns whether a model on JAX is within an epoch: the state of its compiled step is ahead of its variables."""
    return getattr(model, "_jax_state", None) is not None


def length_of(iterator: Any) -> int | None:
    """Returns the number of batches of an epoch that an iterator of Keras 3 goes through; None if it is unknown."""
    return getattr(iterator, "steps_per_epoch", None) or getattr(iterator, "_num_batches", None)


def set_length(iterator: Any, batches: int | None) -> None:
    """Sets the number of batches that an iterator of Keras 3 over the batches of an epoch says it has.

    The adapter, which the iterator asks again before every epoch, says the same number.
    """
    if batches == iterator._num_batches:
        return
    iterator._num_batches = batches
    adapter = iterator.data_adapter
    adapter.__class__ = type(adapter.__class__.__name__, (adapter.__class__,), {"num_batches": batches})
