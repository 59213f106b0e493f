"""The interface between syrtos and the framework that Keras runs on; each backend's folder has an implementation."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy.typing as npt

from syrtos.comm.communicator import Array, Communicator
from syrtos.errors import ConfigurationError
from syrtos.observe.trace import ProfiledEvent


class Step(Protocol):
    """A step on this worker's share of a batch, as losses and metrics see it."""

    def weight_of(self, values: Any) -> Any:
        """Returns this worker's part of the step's samples where ``values`` is one number, of any type.

        None where ``values`` has rows.
        """
        ...

    def fraction_like(self, values: Any) -> Any:
        """Returns this worker's part of the step's samples in the dtype of floating ``values``.

        It is 1 where the worker has none, so that one can divide by it.
        """
        ...

    def total_like(self, values: Any) -> Any:
        """Returns the sum of all elements over the workers that have samples, without a gradient."""
        ...

    def mask_factor(self, mask: Any, like: Any) -> Any:
        """Returns the factor between mask weights normalized within the share and within the global batch.

        Multiplied by it, the former become the latter. It has the dtype of ``like``.
        """
        ...

    @property
    def splits_batch(self) -> bool:
        """Returns whether this worker has a part of a batch, and not a batch of its own."""
        ...

    def rows_of_all(self, tree: Any) -> Any:
        """Returns the structure with the rows of all workers, in order, in place of this worker's.

        Floating scalars become their mean by samples, whole numbers their sum. Gradients of the result flow to this
        worker's rows.
        """
        ...

    def whole_batch(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: each worker computes the whole batch inside.

        Nothing is exchanged or weighted there, and assignments are equal on all workers.
        """
        ...


class Backend(abc.ABC):
    """A framework under Keras.

    Attributes:
        name: of the backend, as in KERAS_BACKEND.
        global_program: whether the framework computes the global batch as one program over all workers. Where it does
            not, each worker computes its share, and syrtos exchanges gradients and states.
    """

    name: ClassVar[str]
    global_program: ClassVar[bool] = False

    @abc.abstractmethod
    def eager(self) -> bool:
        """Returns whether what is called now computes at once, and is not being traced."""

    @abc.abstractmethod
    def held_object(self, variable: Any) -> Any:
        """Returns the framework's object that a Keras variable holds; for one of the framework, the variable itself."""

    def identity(self, variable: Any) -> int:
        """Returns a number that is the same for a Keras variable and for the framework's object that it holds."""
        return id(self.held_object(variable))

    @abc.abstractmethod
    def has_value(self, variable: Any) -> bool:
        """Returns whether a variable has been given a value.

        One that is created while a function is traced has none yet.
        """

    def write(self, variable: Any, value: npt.NDArray[Any]) -> None:
        """Assigns a value to a variable of Keras or of the framework."""
        variable.assign(value)

    @abc.abstractmethod
    def memory_of(self, variable: Any) -> npt.NDArray[Any]:
        """Returns the variable's value, without a copy where the framework can lend it.

        It must not be written to, or kept.
        """

    def broadcast_in_graph(self, comm: Communicator, variables: Sequence[Any], root: int) -> None:
        """Adds an operation to the function that is being traced, which gives every worker ``root``'s values.

        Raises:
            ConfigurationError: the framework has no such operation.
        """
        raise ConfigurationError(
            f"Variables can't be broadcast inside a traced function of {self.name}: call it outside, before training."
        )

    def settle(self, model: Any) -> None:  # noqa: B027 - most frameworks keep nothing elsewhere
        """Writes state that a trainer keeps elsewhere during an epoch back to the model's variables."""

    def count_draws(self) -> int:
        """Returns how often steps of this process have drawn random numbers, where no variable of the model tells."""
        return 0

    def set_drawn(self, count: int) -> None:  # noqa: B027 - see above
        """Continues from the count that `count_draws` gave."""

    def skip_batches(self, batches: Any, steps: int) -> None:
        """Draws up to ``steps`` batches as the training function would, without a step.

        Raises:
            StopIteration: there is none.
        """
        next(batches)
        with contextlib.suppress(StopIteration):  # the last call of an epoch may have fewer
            for _ in range(steps - 1):
                next(batches)

    def on_host(self, function: Callable[[Array], Array], value: Any, shape: tuple[int, ...]) -> Any:
        """Applies ``function`` to a tensor's value on the host, and returns its result as a tensor.

        The result is an array of the given ``shape``. The function is called eagerly, or by the function that is being
        traced.

        Raises:
            ConfigurationError: the framework has no such operation.
        """
        raise ConfigurationError(f"Nothing is computed on the host in the middle of a program of {self.name}.")

    def buffers_of(self, model: Any) -> list[Any]:
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

    def gathering_variables(self, model: Any) -> contextlib.AbstractContextManager[None]:
        """Context manager: one worker alone can read all variables of a model inside, to save it.

        All workers must enter.
        """
        return contextlib.nullcontext()

    # -- where each worker computes its share ------------------------------------------------------------

    def current_step(self) -> Step | None:
        """Returns the step that this thread is in, if it is shared with other workers; else None."""
        return None

    def rank_to_seed(self) -> int:
        """Returns a number that tells the seeds of workers apart.

        It is 0 for random numbers that must be equal on all workers, such as those that weights are made of.
        """
        return 0

    def reduce_gradients(self, optimizer: Any, grads: Sequence[Any]) -> Sequence[Any]:
        """Returns the gradients of the global batch, from those of this worker's share."""
        return grads

    def average(self, optimizer: Any, comm: Communicator) -> None:
        """Makes one optimizer average its gradients over the workers.

        It does so also where syrtos was not asked to reduce for all optimizers.

        Raises:
            ConfigurationError: the framework exchanges itself.
        """
        raise ConfigurationError(f"Optimizers exchange no gradients with Keras on {self.name}.")

    def finite_everywhere(self, optimizer: Any, finite: Any) -> Any:
        """Returns whether all workers that have samples found their gradients finite.

        The result is a Boolean tensor, as ``finite`` is.
        """
        return finite

    def updating(self) -> contextlib.AbstractContextManager[None]:
        """Context manager for an optimizer's update: what it assigns is equal on all workers already."""
        return contextlib.nullcontext()

    def exchanged_by(self, model: Any) -> tuple[Communicator, list[Any]] | None:
        """Returns the workers, and the variables that an optimizer of the script's own choice keeps equal on them.

        None where the script has chosen none to exchange gradients.
        """
        return None


class _Active:
    """The backend of this process."""

    backend: Backend | None = None


def use(backend: Backend, unless_chosen: bool = False) -> None:
    """Makes ``backend`` that of this process; with ``unless_chosen`` only where none was chosen before."""
    if _Active.backend is None or not unless_chosen:
        _Active.backend = backend


def is_chosen() -> bool:
    """Returns whether the backend of this process is known."""
    return _Active.backend is not None


def computes_global_batches() -> bool:
    """Returns whether the framework takes whole batches on each worker: see `Backend.global_program`."""
    return _Active.backend is not None and _Active.backend.global_program


def active() -> Backend:
    """Returns the backend of this process.

    Raises:
        ConfigurationError: none was chosen yet.
    """
    if _Active.backend is None:
        raise ConfigurationError("Import keras before calling this function, so that syrtos knows Keras's backend.")
    return _Active.backend
