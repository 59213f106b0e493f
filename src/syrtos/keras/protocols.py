"""The members of objects of Keras that syrtos uses.

Keras 3 and Keras 2 have no common base class, so these are protocols: both have the members, on
every backend. What only some objects have is read by `getattr`, and is not listed. They stand in
the order of the alphabet, after those that they are derived from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar

import numpy.typing as npt

from syrtos.comm.communicator import Array

# The parameters and the result of a function, for its wrappers.
P = ParamSpec("P")
R = TypeVar("R")
# The logs that Keras gives to callbacks: numbers by name, or None. A step of a script's own may log
# other things.
Logs = Mapping[str, object] | None


class CallbackList(Protocol):
    """Keras's list of the callbacks of a `fit`, `evaluate` or `predict`."""

    callbacks: list[object]
    params: TrainingParams

    def set_params(self, params: TrainingParams) -> None:
        """Gives all callbacks the training's parameters, e.g. the number of steps in an epoch."""
        ...


class FrameworkVariable(Protocol):
    """A variable of Keras, or of its framework: `tf.Variable`, a parameter or buffer of torch."""

    @property
    def dtype(self) -> object:
        """A name in Keras 3, else the framework's own dtype."""
        ...

    @property
    def shape(self) -> Shape:
        """Its sizes, as ints in every framework."""
        ...


class NamedVariable(FrameworkVariable, Protocol):
    """A variable of Keras or TensorFlow; torch's own have no names."""

    @property
    def name(self) -> str:
        """Its name, which may not be unique."""
        ...


class Variable(NamedVariable, Protocol):
    """A variable of Keras."""

    @property
    def trainable(self) -> bool:
        """Says whether gradients may change it."""
        ...

    def assign(self, value: npt.ArrayLike, /) -> object:
        """Gives it a value."""
        ...


class Counter(Variable, Protocol):
    """A variable that counts the updates of an optimizer."""

    def assign_add(self, value: npt.ArrayLike, /) -> object:
        """Adds to its value."""
        ...

    def assign_sub(self, value: npt.ArrayLike, /) -> object:
        """Subtracts from it."""
        ...

    def __int__(self) -> int: ...


class CutVariable(FrameworkVariable, Protocol):
    """A variable of which each worker keeps a part: see `syrtos.keras.features.sharding`."""

    def gather_whole(self) -> Array:
        """Returns the whole value; all workers call it together."""
        ...


class EpochIterator(Protocol):
    """Keras 3's iterator over the batches of an epoch."""

    data_adapter: object
    steps_per_epoch: int | None
    steps_per_execution: int
    _num_batches: int | None


class Layer(Protocol):
    """A layer, or a model."""

    @property
    def name(self) -> str:
        """The name that the script or Keras has given it."""
        ...

    @property
    def non_trainable_variables(self) -> Sequence[Variable]:
        """The variables that no gradient changes."""
        ...

    @property
    def trainable_variables(self) -> Sequence[Variable]:
        """The variables that are trained."""
        ...

    @property
    def variables(self) -> Sequence[Variable]:
        """The variables, trained or not; Keras 2 raises ValueError before the layer is built."""
        ...


class Metric(Protocol):
    """A metric, of Keras or of the script's own."""

    @property
    def name(self) -> str:
        """The name of its log."""
        ...

    @property
    def variables(self) -> Sequence[Variable]:
        """The variables in which it counts."""
        ...

    def result(self) -> Any:
        """Returns a number; a script's metric may return a dictionary of them, or anything else."""
        ...


class Model(Layer, Protocol):
    """A model that `compile` has given an optimizer, or a script's own."""

    built: bool
    optimizer: Optimizer | None
    # A script's own model may lack it.
    steps_per_execution: int
    # The flags by which callbacks end `fit` and `evaluate`.
    stop_training: bool
    stop_evaluating: bool
    # Whether XLA compiles its steps; a name or None where Keras chooses.
    jit_compile: Any
    # None until Keras makes them, which it leaves out where they are there.
    test_function: Callable[..., Any] | None
    train_function: Callable[..., Any] | None
    _initial_epoch: int | None

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics of `compile`, and those that its layers keep."""
        ...

    def get_metrics_result(self) -> dict[str, object]:
        """Returns the results of all metrics by name."""
        ...

    def make_test_function(self) -> object:
        """Makes the function that evaluates a call's batches, if there is none."""
        ...

    def reset_metrics(self) -> None:
        """Sets all metrics to their beginning."""
        ...

    def _flatten_layers(self) -> Iterable[Layer]: ...


class Optimizer(Protocol):
    """An optimizer of Keras 3 or Keras 2."""

    built: bool
    clipnorm: float | None
    global_clipnorm: float | None
    # A number, its variable, or what a schedule gives now; Keras's own annotations have no common
    # type for them.
    learning_rate: Any
    _iterations: Counter
    _learning_rate: object

    @property
    def iterations(self) -> Counter:
        """The number of its updates."""
        ...

    @property
    def name(self) -> str:
        """Its name, by which its variables are named."""
        ...

    @property
    def variables(self) -> Sequence[Variable]:
        """Its own variables, without those of the model; a method in old Keras 2."""
        ...

    def build(self, variables: list[Variable]) -> None:
        """Makes its variables for those of a model."""
        ...

    def _clip_gradients(self, grads: list[Any]) -> Iterable[Any]: ...

    def _use_weight_decay(self, variable: Any) -> bool: ...


class Shape(Protocol):
    """The sizes of a tensor: a tuple, or a shape of the framework."""

    # Ints for every variable; TensorFlow's stubs say `int | None` for the shapes of all tensors.
    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class TrainingParams(TypedDict, total=False):
    """The facts about a training that Keras gives to callbacks."""

    epochs: int
    steps: int | None
