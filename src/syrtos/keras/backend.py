"""What the core of this room asks of the framework that Keras runs on: one class, one implementation in each backend's folder."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy.typing as npt

from syrtos.comm.communicator import Communicator
from syrtos.errors import ConfigurationError


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
    def identity(self, variable: Any) -> int:
        """The same number for a Keras variable and what it holds in the framework."""

    @abc.abstractmethod
    def has_value(self, variable: Any) -> bool:
        """Whether a variable has been given a value; one that is created while a function is traced has none yet."""

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

    def splits_variables(self) -> bool:
        """Whether a worker holds parts of variables: then all workers read a variable together, and save a model together."""
        return False

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
