"""The interface between syrtos and the framework of Keras; each backend's folder implements it."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from syrtos.comm.communicator import Array, Communicator
from syrtos.errors import ConfigurationError
from syrtos.observe.trace import ProfiledEvent

if TYPE_CHECKING:
    from syrtos.comm.world import Session
    from syrtos.keras.protocols import FrameworkVariable, Logs, Model, Optimizer, Variable
    from syrtos.keras.updates import Update

# Any nested structure, which comes back in the same form.
Tree = TypeVar("Tree")
# The variables that a backend takes: those of Keras, and those of its framework.
VariableT = TypeVar("VariableT")
# The framework's tensors.
TensorT = TypeVar("TensorT")


class Step(Protocol[TensorT]):
    """A step on this worker's share of a batch, as losses and metrics see it."""

    def weight_of(self, values: object) -> TensorT | None:
        """Returns this worker's part of the step's samples where ``values`` is one number.

        The number may be of any type. Returns None where ``values`` has rows.
        """
        ...

    def fraction_like(self, values: TensorT) -> TensorT:
        """Returns this worker's part of the step's samples in the dtype of floating ``values``.

        It is 1 where the worker has none, so that one can divide by it.
        """
        ...

    def total_like(self, values: TensorT) -> TensorT:
        """Returns the sum of all elements over workers that have samples, without a gradient."""
        ...

    def mask_factor(self, mask: TensorT, like: TensorT) -> TensorT:
        """Returns the factor between mask weights normalized in the share and the global batch.

        Multiplied by it, the former become the latter. It has the dtype of ``like``.
        """
        ...

    @property
    def draws_alike(self) -> bool:
        """Returns whether random numbers that are drawn now are the same on all workers."""
        ...


class Backend(abc.ABC, Generic[VariableT, TensorT]):
    """A framework under Keras.

    It is generic in the variables that it takes, Keras's and the framework's own, and in the
    framework's tensors.

    Attributes:
        name: of the backend, as in KERAS_BACKEND.
        global_program: whether the framework computes the global batch as one program over all
            workers. Where it does not, each worker computes its share, and syrtos exchanges
            gradients and states.
    """

    name: ClassVar[str]
    global_program: ClassVar[bool] = False

    @abc.abstractmethod
    def eager(self) -> bool:
        """Returns whether what is called now computes at once, and is not being traced."""

    @abc.abstractmethod
    def held_object(self, variable: VariableT) -> FrameworkVariable:
        """Returns the framework's object that a Keras variable holds.

        A variable of the framework is returned itself.
        """

    def identity(self, variable: VariableT) -> int:
        """Returns one number for a Keras variable and for the framework's object that it holds."""
        return id(self.held_object(variable))

    @abc.abstractmethod
    def has_value(self, variable: VariableT) -> bool:
        """Returns whether a variable has been given a value.

        One that is created while a function is traced has none yet. On JAX one whose array was given
        away has none any more.
        """

    def write(self, variable: VariableT, value: Array) -> None:
        """Assigns a value to a variable of Keras or of the framework."""
        # TensorFlow's own variables have the method too. Those of torch have not: its backend has a
        # `write` of its own.
        cast("Variable", variable).assign(value)

    @abc.abstractmethod
    def memory_of(self, variable: VariableT) -> Array:
        """Returns the variable's value, without a copy where the framework can lend it.

        It must not be written to, or kept.
        """

    def broadcast_in_graph(
        self, comm: Communicator, variables: Sequence[VariableT], root: int
    ) -> None:
        """Adds an operation to the traced function that gives every worker ``root``'s values.

        Raises:
            ConfigurationError: the framework has no such operation.
        """
        raise ConfigurationError(
            f"Variables can't be broadcast inside a traced function of {self.name}: call it"
            " outside, before training."
        )

    def settle(self, model: Model) -> None:
        """Writes state that a trainer keeps elsewhere in an epoch back to the model's variables."""

    def await_values(self, logs: Logs) -> None:
        """Waits until the device has computed the logs of a step.

        JAX alone does, whose steps always return sooner. Those of torch and TensorFlow do on GPUs,
        where the time until the numbers are read counts as that of what reads them.
        """

    def numbers(self, scalars: Sequence[TensorT]) -> list[float]:
        """Returns the values of tensors of one number each, which a device may compute."""
        return [float(cast("Any", scalar)) for scalar in scalars]

    def draws(self) -> dict[str, Array]:
        """Returns the states of generators that steps draw from, for a snapshot.

        Raises:
            SnapshotError: there are too many.
        """
        return {}

    def callbacks_ended(self) -> None:
        """Notes that the callbacks of a training step have run: data draws as from now on."""

    def epoch_computed(self) -> None:
        """Notes that an epoch was trained and evaluated, before its last callbacks."""

    def epoch_begins(self, is_left_out: bool) -> None:
        """Notes that the callbacks between two epochs have run: data draws as from now on.

        Where the epoch ``is_left_out``, they have not, and data draws as if they had.
        """

    def begin_replay(self, draws: dict[str, Array]) -> None:
        """Begins to leave out training steps; ``draws``: as `draws` gave it after them."""

    def leave_out_step(self) -> None:
        """Notes that a training step was left out: data draws as it did after that step."""

    def put_back_draws(self, draws: dict[str, Array]) -> None:
        """Continues after the steps that were left out; ``draws``: as `draws` gave it after them."""

    def gather_rows(self, data: object) -> object:
        """Returns the data that a script gives to a model, with all rows in this process.

        ``data``: arrays in any structure, or any other kind of data, which is returned as it is.
        All workers must call this.
        """
        return data

    def skip_batches(self, batches: Iterator[object], steps: int) -> None:
        """Draws up to ``steps`` batches as the training function would, without a step.

        Raises:
            StopIteration: there is none.
        """
        # Not suppressed: that there is no batch at all ends the epoch, as it does in a step.
        next(batches)
        # The last call of an epoch may have fewer batches than the others.
        with contextlib.suppress(StopIteration):
            for _ in range(steps - 1):
                next(batches)

    def on_host(
        self, function: Callable[[Array], Array], value: TensorT, shape: tuple[int, ...]
    ) -> TensorT:
        """Applies ``function`` to a tensor's value on the host, and returns its result as a tensor.

        The result is an array of the given ``shape``. The function is called eagerly, or by the
        function that is being traced.

        Raises:
            ConfigurationError: the framework has no such operation.
        """
        raise ConfigurationError(
            f"Nothing is computed on the host in the middle of a program of {self.name}."
        )

    def buffers_of(self, model: Model) -> Sequence[Variable]:
        """Returns the state of a model that Keras has no variables of, in the form of variables."""
        return []

    def device_memory(self) -> int:
        """Returns the most bytes that this process has had on its accelerator.

        It is 0 where there is no accelerator, or the framework does not tell.
        """
        return 0

    def start_profiler(self, folder: Path) -> Callable[[], Sequence[ProfiledEvent]]:
        """Starts the framework's profiler, which may write into ``folder``.

        Returns:
            A function that stops it, and returns the events that it saw.

        Raises:
            ConfigurationError: the framework has none.
        """
        raise ConfigurationError(f"Keras on {self.name} has no profiler that syrtos knows.")

    def annotation(self, name: str) -> contextlib.AbstractContextManager[object]:
        """Context manager: the framework's profiler shows what runs inside under this name."""
        return contextlib.nullcontext()

    def splits_variables(self) -> bool:
        """Returns whether a worker holds only parts of variables.

        If so, all workers must read a variable together, and save a model together.
        """
        return False

    def gathering_variables(self, model: Model) -> contextlib.AbstractContextManager[None]:
        """Context manager: one worker alone can read all variables of a model inside, to save it.

        All workers must enter.
        """
        return contextlib.nullcontext()

    # -- where each worker computes its share ------------------------------------------------------

    def current_step(self) -> Step[TensorT] | None:
        """Returns the step that this thread is in if other workers share it; else None."""
        return None

    def rank_to_seed(self) -> int:
        """Returns a number that tells the seeds of workers apart.

        It is 0 for random numbers that must be equal on all workers, such as those that weights are
        made of.
        """
        return 0

    def reduce_gradients(
        self, optimizer: Optimizer, grads: Sequence[TensorT | None]
    ) -> Sequence[TensorT | None]:
        """Returns the gradients of the global batch, from those of this worker's share."""
        return grads

    def apply_if_rows(
        self, update: Update, grads: Sequence[TensorT], apply: Callable[[Sequence[TensorT]], None]
    ) -> None:
        """Calls ``apply`` with an update's gradients, unless this worker has no row of the batch.

        The optimizer's number of updates then stays as it is.
        """
        apply(grads)

    def apply_if_finite(
        self, update: Update, grads: Sequence[TensorT], apply: Callable[[Sequence[TensorT]], None]
    ) -> None:
        """Calls ``apply`` with reduced gradients, or changes nothing if any worker's is not finite.

        Of gradients that are accumulated, each batch's part is checked before it is added.
        """
        apply(grads)

    def check_finite(
        self, update: Update, grads: Sequence[TensorT], own: Sequence[TensorT]
    ) -> Sequence[TensorT]:
        """Returns an update's reduced gradients, once `features.finite.look` has checked them.

        ``own``: those of this worker's share.

        Raises:
            NonFiniteError: training must not go on with them.
        """
        return grads

    def undo_if_left_out(
        self, model: Model, session: Session, step: Callable[[], object]
    ) -> Callable[[], object]:
        """Wraps a training step: if it leaves out an update, its batch changes nothing else either.

        Metrics, moving statistics and seeds are put back, and the logs are without the batch.
        """
        return step

    def average(self, optimizer: Optimizer, comm: Communicator) -> None:
        """Makes one optimizer average its gradients over the workers.

        It does so also where syrtos was not asked to reduce for all optimizers.

        Raises:
            ConfigurationError: the framework exchanges itself.
        """
        raise ConfigurationError(f"Optimizers exchange no gradients with Keras on {self.name}.")

    def finite_everywhere(self, optimizer: Optimizer, finite: TensorT) -> TensorT:
        """Returns whether all workers that have samples found their gradients finite.

        The result is a Boolean tensor, as ``finite`` is.
        """
        return finite

    def updating(self) -> contextlib.AbstractContextManager[None]:
        """Context manager for an optimizer's update: all workers assign equal values already."""
        return contextlib.nullcontext()

    def exchanged_by(self, model: Model) -> tuple[Communicator, list[Variable]] | None:
        """Returns the workers, and the variables that an optimizer keeps equal on them.

        The optimizer is of the script's own choice. Returns None where the script has chosen none
        to exchange gradients.
        """
        return None


class _Active:
    """The backend of this process."""

    # Of Keras's own functions pyright infers a union of all backends' tensors: no class of tensors
    # fits here.
    backend: Backend[FrameworkVariable, Any] | None = None


# Each framework's classes of variables and tensors are its own: the core knows only the members
# that they share.
def use(backend: Backend[Any, Any], unless_chosen: bool = False) -> None:
    """Makes ``backend`` that of this process; with ``unless_chosen`` only if none was chosen."""
    if _Active.backend is None or not unless_chosen:
        _Active.backend = backend


def is_chosen() -> bool:
    """Returns whether the backend of this process is known."""
    return _Active.backend is not None


def computes_global_batches() -> bool:
    """Returns whether the framework takes whole batches on each worker.

    See `Backend.global_program`.
    """
    return _Active.backend is not None and _Active.backend.global_program


def active() -> Backend[FrameworkVariable, Any]:
    """Returns the backend of this process.

    Raises:
        ConfigurationError: none was chosen yet.
    """
    if _Active.backend is None:
        raise ConfigurationError(
            "Import keras before calling this function, so that syrtos knows Keras's backend."
        )
    return _Active.backend
