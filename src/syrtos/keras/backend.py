"""What the core of this room asks of the framework that Keras runs on: one class, one implementation in each backend's folder."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy.typing as npt

from syrtos.comm.communicator import Array, Communicator
from syrtos.errors import ConfigurationError
from syrtos.observe.trace import Event


class Step(Protocol):
    """A step on this worker's share of a batch, as losses and metrics see it."""

    def weight_of(self, values: Any) -> Any:
        """This worker's part of the step's samples where ``values`` is one number, of any type; None where it has rows."""
        ...

    def fraction_like(self, values: Any) -> Any:
        """This worker's part of the step's samples in the dtype of floating ``values``; 1 where it has none, to divide by."""
        ...

    def total_like(self, values: Any) -> Any:
        """The sum of all elements of all workers that have samples, without a gradient."""
        ...

    def mask_factor(self, mask: Any, like: Any) -> Any:
        """Turns mask weights normalized within the share into weights normalized within the global batch."""
        ...

    @property
    def splits_batch(self) -> bool:
        """Whether this worker has a part of a batch, and not one of its own."""
        ...

    def rows_of_all(self, tree: Any) -> Any:
        """The structure with the rows of all workers, in order, in place of this worker's. Floating scalars become their mean by samples, whole
        numbers their sum. Gradients of the result flow to this worker's rows."""
        ...

    def whole_batch(self) -> contextlib.AbstractContextManager[None]:
        """Inside, what is computed is of the whole batch on each worker: nothing is exchanged or weighted, and assignments are equal."""
        ...


class Backend(abc.ABC):
    """A framework under Keras.

    Attributes:
        name: as in KERAS_BACKEND.
        global_program: whether the framework computes the global batch as one program over all workers. Where it does not, each worker computes
            its share, and syrtos exchanges gradients and states.
    """

    name: ClassVar[str]
    global_program: ClassVar[bool] = False

    @abc.abstractmethod
    def eager(self) -> bool:
        """Whether what is called now computes at once, and is not being traced."""

    @abc.abstractmethod
    def held(self, variable: Any) -> Any:
        """What a Keras variable holds in the framework; one of the framework itself."""

    def identity(self, variable: Any) -> int:
        """The same number for a Keras variable and what it holds in the framework."""
        return id(self.held(variable))

    @abc.abstractmethod
    def has_value(self, variable: Any) -> bool:
        """Whether a variable has been given a value; one that is created while a function is traced has none yet."""

    def write(self, variable: Any, value: npt.NDArray[Any]) -> None:
        """Assigns a value to a variable of Keras or of the framework."""
        variable.assign(value)

    @abc.abstractmethod
    def memory_of(self, variable: Any) -> npt.NDArray[Any]:
        """The variable's value, without a copy where the framework can lend it: not to be written to, or kept."""

    def broadcast_in_graph(self, comm: Communicator, variables: Sequence[Any], root: int) -> None:
        """Adds to the function that is being traced what gives every worker ``root``'s values.

        Raises:
            ConfigurationError: the framework has no such operation.
        """
        raise ConfigurationError(
            f"Variables can't be broadcast inside a traced function of {self.name}: call it outside, before training."
        )

    def settle(self, model: Any) -> None:  # noqa: B027 - most frameworks keep nothing elsewhere
        """Writes state that a trainer keeps elsewhere during an epoch back to the model's variables."""

    def drawn(self) -> int:
        """How often steps of this process have drawn random numbers, where that is no variable of the model."""
        return 0

    def set_drawn(self, count: int) -> None:  # noqa: B027 - see above
        """Goes on from what `drawn` gave."""

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
        """What ``function`` makes of a tensor's value, an array of the given shape, as a tensor; eagerly, or in the function that is being traced.

        Raises:
            ConfigurationError: the framework has no such operation.
        """
        raise ConfigurationError(f"Nothing is computed on the host in the middle of a program of {self.name}.")

    def buffers_of(self, model: Any) -> list[Any]:
        """State of a model that Keras has no variables of, in the form of variables."""
        return []

    def device_memory(self) -> int:
        """The most bytes that this process has had on its accelerator; 0 where it has none, or the framework does not tell."""
        return 0

    def start_profiler(self, folder: Path) -> Callable[[], Sequence[Event]]:
        """Starts the framework's profiler, which may write into ``folder``; the returned function stops it, and gives what it saw.

        Raises:
            ConfigurationError: the framework has none.
        """
        raise ConfigurationError(f"Keras on {self.name} has no profiler that syrtos knows.")

    def annotation(self, name: str) -> contextlib.AbstractContextManager[object]:
        """Around what that profiler sees under this name."""
        return contextlib.nullcontext()

    def splits_variables(self) -> bool:
        """Whether a worker holds parts of variables: then all workers read a variable together, and save a model together."""
        return False

    def gathered(self, model: Any) -> contextlib.AbstractContextManager[None]:
        """Inside, one worker alone can read all variables of a model, to save it. All workers must enter."""
        return contextlib.nullcontext()

    # -- where each worker computes its share ------------------------------------------------------------

    def current_step(self) -> Step | None:
        """The step that this thread is in, if it is shared with others."""
        return None

    def rank_to_seed(self) -> int:
        """What tells the seeds of workers apart: 0 for numbers that must be equal on all, as those that weights are made of."""
        return 0

    def reduced(self, optimizer: Any, grads: Sequence[Any]) -> Sequence[Any]:
        """The gradients of the global batch, from those of this worker's share."""
        return grads

    def average(self, optimizer: Any, comm: Communicator) -> None:
        """Makes one optimizer average its gradients over the workers, also where syrtos was not asked to reduce for all.

        Raises:
            ConfigurationError: the framework exchanges itself.
        """
        raise ConfigurationError(f"Optimizers exchange no gradients with Keras on {self.name}.")

    def finite_everywhere(self, optimizer: Any, finite: Any) -> Any:
        """Whether all workers that have samples found their gradients finite: a Boolean tensor, as ``finite`` is."""
        return finite

    def updating(self) -> contextlib.AbstractContextManager[None]:
        """Around an optimizer's update: what it assigns is equal on all workers already."""
        return contextlib.nullcontext()

    def exchanged_by(self, model: Any) -> tuple[Communicator, list[Any]] | None:
        """The workers and variables that a script's own choice of an optimizer keeps equal; None where it has chosen none."""
        return None


class _Active:
    """The backend of this process."""

    backend: Backend | None = None


def use(backend: Backend, unless_chosen: bool = False) -> None:
    """From now on the core works with ``backend``; with ``unless_chosen`` only where none was chosen before."""
    if _Active.backend is None or not unless_chosen:
        _Active.backend = backend


def is_chosen() -> bool:
    """Whether the backend of this process is known."""
    return _Active.backend is not None


def computes_global_batches() -> bool:
    """Whether the framework takes whole batches on each worker: see `Backend.global_program`."""
    return _Active.backend is not None and _Active.backend.global_program


def active() -> Backend:
    """The backend of this process.

    Raises:
        ConfigurationError: none was chosen yet.
    """
    if _Active.backend is None:
        raise ConfigurationError("Import keras before calling this function, so that syrtos knows Keras's backend.")
    return _Active.backend
