"""Private symbols of Keras's models and optimizers that syrtos reads.

Seen on Keras 3.13.2, 3.15.1, 3.16 (nightly) and tf_keras 2.21.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import (
        CallbackList,
        Counter,
        EpochIterator,
        FrameworkVariable,
        Layer,
        Logs,
        Model,
        Optimizer,
        Variable,
    )

    class KerasTensor(Protocol):
        shape: tuple[int | None, ...]
        dtype: str

    class _TensorFlowVariable(Variable, Protocol):
        _shared_name: str

    class _Keras2Optimizer(Optimizer, Protocol):
        def _build_learning_rate(self, learning_rate: float) -> Variable: ...

    class _Keras3Optimizer(Optimizer, Protocol):
        _trainable_variables: Sequence[Variable]

        def _track_variable(self, variable: Variable) -> None: ...


class JaxModel(Protocol):
    """A model of Keras 3 on JAX."""

    _jax_state: dict[str, object] | None

    def jax_state_sync(self) -> None:
        """Writes the state of the compiled step back to the variables."""
        ...


# A gradient in any of the forms of the frameworks, e.g. `tf.IndexedSlices`.
Gradient = TypeVar("Gradient")

# Where layers of Keras 3 and Keras 2 note what `add_loss` was given: it is a part of the loss, and
# that of a share.
ADDED_LOSSES = frozenset({"_losses", "_eager_losses"})
# The classes of `keras.src.trainers.data_adapters`, and what they hand to steps.
_DATA_KINDS = {
    "ArrayDataAdapter": "arrays",
    "TFDatasetAdapter": "dataset",
    "TorchDataLoaderAdapter": "loader",
    "GraphDataLoaderAdapter": "loader",
    "PyDatasetAdapter": "py_dataset",
    "GeneratorDataAdapter": "generator",
}
# Optimizers that treat each number of a variable by itself.
ELEMENTWISE = frozenset(
    {"SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Nadam", "Ftrl", "Lion"}
)


def data_kind(iterator: object) -> str:
    """Returns the kind of a Keras 3 iterator's data: one of `_DATA_KINDS`, "prefetched" or ""."""
    adapter = getattr(iterator, "data_adapter", None)
    dataset: Any = getattr(adapter, "_dataset", None)
    while type(dataset).__name__ == "_OptionsDataset":
        dataset = dataset._input_dataset
    if type(dataset).__name__ == "_PrefetchDataset":
        return "prefetched"
    return _DATA_KINDS.get(type(adapter).__name__, "")


def enqueuer_of(iterator: object) -> Any:
    """Returns what reads a `PyDataset` ahead by threads; None where nothing does (Keras 3.15.1)."""
    return getattr(getattr(iterator, "data_adapter", None), "enqueuer", None)


def is_reading_ahead(iterator: object) -> bool:
    """Returns whether the thread that reads a `PyDataset` ahead may still go further."""
    enqueuer = enqueuer_of(iterator)
    thread = getattr(enqueuer, "run_thread", None)
    return thread is not None and thread.is_alive() and not enqueuer.future_queue.full()


def keras_of(optimizer: object) -> Any:  # a module: Keras 3 or Keras 2
    """Returns the package of an optimizer's or model's base class: Keras 3, or 2 (`tf_keras`)."""
    legacy = any(base.__module__.startswith("tf_keras.") for base in type(optimizer).__mro__)
    return sys.modules["tf_keras" if legacy else "keras"]


@dataclasses.dataclass
class _Built:
    """The record of an optimizer of Keras 2: the variables it was built for, None if not noted."""

    variables: Sequence[object] | None = None


def note_built(optimizer: object, variables: Sequence[object]) -> None:
    """Notes the variables that a Keras 2 optimizer was built for; it keeps only their numbers."""
    record_of(optimizer, _Built).variables = variables


def trained_by(optimizer: Optimizer) -> list[Variable]:
    """Returns the variables an optimizer was built for, in the order in which it numbers them.

    Its `variables` has its own alone.
    """
    noted = read_record(optimizer, _Built).variables
    found = cast("_Keras3Optimizer", optimizer)._trainable_variables if noted is None else noted
    return cast("list[Variable]", list(found))


def path_of(variable: Variable) -> str:
    """Returns the name after which Keras names the slots of a variable.

    `keras.Variable` has a path, and Keras 2 takes TensorFlow's name without its output.
    """
    return getattr(variable, "path", None) or cast("_TensorFlowVariable", variable)._shared_name


def slot_of(slot: Variable, paths: Sequence[str]) -> tuple[str, str | None]:
    """Returns the name of an optimizer's slot, e.g. "momentum", and the path of its variable.

    The path is one of ``paths``; None if the slot belongs to all variables together. Keras 3 names
    the slot ``layer_kernel_momentum``, Keras 2 ``SGD/m/layer/kernel``.
    """
    if hasattr(slot, "path"):
        fits = [p for p in paths if slot.name.startswith(p.replace("/", "_") + "_")]
        path = max(fits, key=len, default=None)
        return (
            (slot.name, None)
            if path is None
            else (slot.name.removeprefix(path.replace("/", "_") + "_"), path)
        )
    name = cast("_TensorFlowVariable", slot)._shared_name
    path = max((p for p in paths if name.endswith(f"/{p}")), key=len, default=None)
    return name.removesuffix(f"/{path}").rpartition("/")[2], path


def updates_of(optimizer: Optimizer) -> Counter:
    """Returns the variable that counts an optimizer's updates.

    It counts steps where Keras 3 accumulates gradients.
    """
    # Not `iterations`: Keras 3 divides it by the number of accumulated steps.
    return optimizer._iterations


def count_no_update(optimizer: Optimizer) -> None:
    """Keeps an optimizer's number of updates as it is; Keras's `apply` adds 1 in any case."""
    updates_of(optimizer).assign_sub(1)


def loss_scale_of(optimizer: object) -> list[Variable]:
    """Returns the scale variables of a `LossScaleOptimizer` of Keras 2 that `variables` lacks."""
    scale = getattr(optimizer, "_loss_scale", None)
    return [
        getattr(scale, name) for name in ("_current_loss_scale", "_counter") if hasattr(scale, name)
    ]


def accumulated_by(optimizer: object) -> list[Variable]:
    """Returns the variables in which an optimizer of Keras 3 adds up several steps' gradients."""
    return [
        variable
        for variable in getattr(optimizer, "_accumulated_gradients", None) or []
        if variable is not None
    ]


def averages_of(optimizer: object) -> list[Variable]:
    """Returns the moving averages of weights that an optimizer of Keras 3 keeps with ``use_ema``.

    They take the place of the weights when `fit` ends.
    """
    return list(getattr(optimizer, "_model_variables_moving_average", None) or [])


def layers_of(model: Model) -> list[Layer]:
    """Returns all layers of a model, at any depth."""
    # Its `layers` has its own alone. The method has the same name in Keras 3 and Keras 2 (2.21).
    return list(model._flatten_layers())


def outputs_in_graph(model: object) -> list[tuple[str, KerasTensor]]:
    """Returns the results in a functional model of Keras 3, with the names of what makes them.

    Layers inside of it that are models have graphs of their own.
    """
    # `output` of a layer is public, and raises where it is called twice (3.15.1).
    graph: Any = getattr(model, "_functional", None) or model
    nodes = [node for depth in getattr(graph, "_nodes_by_depth", {}).values() for node in depth]
    return [
        (node.operation.name, tensor)
        for node in nodes
        for tensor in getattr(node, "output_tensors", ())
    ]


def given_to_compile(model: object) -> list[object]:
    """Returns what a script has given `compile` as losses and metrics: names, functions, objects.

    They stand in `_compile_loss` and `_compile_metrics` of Keras 3, which a model lists once it has
    used them, and in `compiled_loss` and `compiled_metrics` of Keras 2.
    """
    loss, metrics = (
        getattr(model, f"_compile_{kind}", None) or getattr(model, f"compiled_{kind}", None)
        for kind in ("loss", "metrics")
    )
    waiting = [getattr(loss, name, None) for name in ("_user_loss", "_user_losses")]
    waiting += [
        getattr(metrics, name, None) for name in ("_user_metrics", "_user_weighted_metrics")
    ]
    found: list[object] = []
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
        elif part is not None:
            found.append(part)
    return found


def compiled_parts(model: object) -> list[object]:
    """Returns the objects among what a script has given `compile` as losses and metrics."""
    return [
        part
        for part in given_to_compile(model)
        if hasattr(part, "reduction") or hasattr(part, "update_state")
    ]


def momentums_of(optimizer: object) -> list[Variable]:
    """Returns the velocities of an optimizer with momentum; empty for others."""
    # They are public in SGD, and `_momentums` in RMSprop, Adam, Nadam and Lion, of Keras 3 and
    # 2.21.
    return list(
        getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    )


def moments_of(optimizer: object) -> tuple[list[Variable], list[Variable], float, float] | None:
    """Returns Adam's first and second moments, and decay factors; None for other optimizers."""
    first, second = (
        list(getattr(optimizer, name, None) or []) for name in ("_momentums", "_velocities")
    )
    beta_1, beta_2 = (getattr(optimizer, name, None) for name in ("beta_1", "beta_2"))
    if not first or not second or beta_1 is None or beta_2 is None:
        return None
    return first, second, float(beta_1), float(beta_2)


def rate_of(optimizer: Optimizer) -> object:
    """Returns the variable of an optimizer's rate, or its schedule."""
    # Not `learning_rate`: of a schedule it gives the number of the moment.
    return optimizer._learning_rate


def has_schedule(optimizer: Optimizer) -> bool:
    """Returns whether an optimizer's rate follows a schedule.

    `learning_rate` gives the number of the moment.
    """
    return isinstance(
        rate_of(optimizer), keras_of(optimizer).optimizers.schedules.LearningRateSchedule
    )


def has_fixed_rate(optimizer: Optimizer) -> bool:
    """Returns whether an optimizer's rate is a settable number: no schedule, and no function."""
    return hasattr(rate_of(optimizer), "assign")


def give_fixed_rate(optimizer: Optimizer, rate: float) -> None:
    """Puts a number in the place of an optimizer's schedule.

    It is among the optimizer's variables as if the optimizer had been made with it.
    """
    if hasattr(optimizer, "_build_learning_rate"):  # Keras 2
        optimizer._learning_rate = cast("_Keras2Optimizer", optimizer)._build_learning_rate(rate)
        return
    keras = sys.modules["keras"]
    variable = keras.Variable(
        rate,
        name="learning_rate",
        dtype=keras.config.floatx(),
        trainable=False,
        aggregation="only_first_replica",
    )
    # Else the optimizer's `variables`, and files of it, would lack the rate.
    cast("_Keras3Optimizer", optimizer)._track_variable(variable)
    optimizer._learning_rate = variable


def decays(optimizer: Optimizer, variable: FrameworkVariable) -> bool:
    """Returns whether an optimizer's weight decay takes in this variable."""
    # Keras has a public method that sets this, and none that tells it.
    return optimizer._use_weight_decay(variable)


def clip(optimizer: Optimizer, gradients: list[Gradient]) -> list[Gradient]:
    """Clips gradients as an optimizer was told to."""
    # Its public methods clip only on the way to an update.
    return list(optimizer._clip_gradients(gradients))


def takes_batch_first() -> bool:
    """Returns whether Keras takes a batch from its data before it calls, and traces, the step."""
    # Where the step is then traced in vain, the batch would be lost.
    return tuple(map(int, sys.modules["keras"].__version__.split(".")[:2])) >= (3, 16)


def steps_in_call(model: Model) -> int:
    """Returns the steps in a call of the training function; 1 if a script's model does not say."""
    return int(getattr(model, "steps_per_execution", None) or 1)


def call_in_training_thread(callback_list: CallbackList) -> None:
    """Makes Keras 3 call the callbacks of syrtos, and of the script, in the training thread.

    On JAX and torch it calls all in another thread where none says that it needs the logs at once
    (names of Keras 3.15.1). Keras's own are left there, which wait for the numbers of a step. Those
    of syrtos are given logs that may still be computing.
    """
    # In a thread of their own, the workers' callbacks would exchange in any order.
    for kind in ("train", "test", "predict"):
        if getattr(callback_list, f"_async_{kind}", False):
            name = f"on_{kind}_batch_end"
            setattr(callback_list, name, _AfterBatch(callback_list, name))


class _AfterBatch:
    """Calls the callbacks of a list after a batch."""

    def __init__(self, callback_list: Any, name: str) -> None:
        self._list, self._name = callback_list, name
        # The methods that were found last, and of each its callback's package; an empty one where
        # the method does nothing: to read the numbers for it would wait for the step.
        self._methods: list[Any] = []
        self._packages: list[str] = []

    def __call__(self, batch: int, logs: Logs = None) -> None:
        callbacks = self._list.callbacks
        # A callback may be taken off the list meanwhile, or get another method.
        methods: list[Any] = [getattr(each, self._name, None) for each in callbacks]
        if methods != self._methods:
            self._methods = methods
            self._packages = [
                _package_of(each) if _has_hook(each, self._name) else "" for each in callbacks
            ]
        hooks = list(zip(methods, self._packages, strict=True))
        if of_keras := [method for method, package in hooks if package == "keras"]:
            self._list._async_dispatch(_call_with_numbers, of_keras, batch, logs)
        flat = _flatten(logs)
        # The list counts the time between taking one callback and the next.
        for _, (method, package) in zip(callbacks, hooks, strict=False):
            if package == "syrtos":
                method(batch, flat)
            elif package not in ("", "keras"):
                _call_with_numbers([method], batch, logs)


def _package_of(callback: object) -> str:
    return type(callback).__module__.partition(".")[0]


def _has_hook(callback: object, name: str) -> bool:
    # Keras's own method of the name calls `on_batch_end`.
    methods = (getattr(callback, each, None) for each in (name, "on_batch_end"))
    return not all(getattr(method, "_is_default", method is None) for method in methods)


def _call_with_numbers(methods: Sequence[Callable[..., None]], batch: int, logs: Logs) -> None:
    from keras.src.utils import python_utils

    numbers = python_utils.pythonify_logs(logs)
    for method in methods:
        method(batch, logs=numbers)


def _flatten(logs: Any) -> dict[str, Any]:
    """Returns logs without dictionaries inside, as Keras makes them, and reads no number."""
    found: dict[str, Any] = {}
    for name, value in dict(logs or {}).items():
        found |= _flatten(value) if isinstance(value, dict) else {name: value}
    return found


def set_state(model: JaxModel, state: Sequence[object]) -> None:
    """Gives a model on JAX the state that its training function has returned."""
    # The trainer itself keeps record of that state only after the call of its training function.
    kinds = (
        "trainable_variables",
        "non_trainable_variables",
        "optimizer_variables",
        "metrics_variables",
    )
    model._jax_state = dict(zip(kinds, state, strict=True))
    model.jax_state_sync()


def trains_outside(model: object) -> bool:
    """Returns whether a model on JAX is within an epoch.

    The state of its compiled step is then ahead of its variables.
    """
    return getattr(model, "_jax_state", None) is not None


def length_of(iterator: object) -> int | None:
    """Returns the number of batches in an epoch of a Keras 3 iterator; None if it is unknown."""
    return getattr(iterator, "steps_per_epoch", None) or getattr(iterator, "_num_batches", None)


def set_length(iterator: EpochIterator, batches: int | None) -> None:
    """Sets the number of batches that an iterator of Keras 3, and its adapter, say an epoch has."""
    if batches == iterator._num_batches:
        return
    iterator._num_batches = batches
    # The iterator asks its adapter for the number again before every epoch. It is a property
    # without a setter there, so the adapter gets a class of its own.
    adapter = iterator.data_adapter
    adapter.__class__ = type(
        adapter.__class__.__name__, (adapter.__class__,), {"num_batches": batches}
    )


class _CompiledInSegments:
    """Stands for ``jit_compile=True`` where Keras is not to compile a step as a whole."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "True"


def compile_in_segments(model: Model) -> None:
    """Lets Keras make functions of a model as without ``jit_compile=True``, which it has."""
    # By the private attribute, which Keras 3 and Keras 2 have: Keras 2's property throws away the
    # functions that were made. Keras 2 reads it when a step is traced.
    object.__setattr__(model, "_jit_compile", _CompiledInSegments())


def asks_for_compilation(model: Model) -> bool:
    """Returns whether a script has asked for compiled steps of a model, or Keras has chosen them."""
    return bool(model.jit_compile) or isinstance(model.jit_compile, _CompiledInSegments)
