"""The implementation of `syrtos.keras.backend.Backend` for torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from syrtos.comm.communicator import Array, Communicator
from syrtos.keras.backend import Backend, Step
from syrtos.keras.features import sharding
from syrtos.keras.torch import gradients, ops, profiler, step
from syrtos.keras.trainer import timing
from syrtos.observe.trace import ProfiledEvent

if TYPE_CHECKING:
    pass


class Torch(Backend["FrameworkVariable", torch.Tensor]):
    """Keras 3 on torch."""

    name = "torch"

    def device_memory(self) -> int:
        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0

    def start_profiler(self, folder: Path) -> Callable[[], Sequence[ProfiledEvent]]:
        return profiler.start(folder)

    def annotation(self, name: str) -> contextlib.AbstractContextManager[object]:
        return profiler.annotation(name)

    def eager(self) -> bool:
        return True

    def held_object(self, variable: Any) -> Any:
        return _holder(variable)

    def has_value(self, variable: Any) -> bool:
        return _holder(variable) is not None

    def write(self, variable: Any, value: npt.NDArray[Any]) -> None:
        if hasattr(variable, "assign"):
            variable.assign(value)
            return
        with torch.no_grad():
            variable.copy_(ops.tensor_of(value, variable))

    def buffers_of(self, model: Any) -> list[Any]:
        return step.buffers_of(model)

    def memory_of(self, variable: Any) -> npt.NDArray[Any]:
        return ops.array_of(_holder(variable))

    def on_host(self, function: Callable[[Array], Array], value: Any, shape: tuple[int, ...]) -> Any:
        return ops.tensor_of(function(ops.array_of(value)), value)

    def splits_variables(self) -> bool:
        return sharding.is_asked()

    def gathering_variables(self, model: Any) -> contextlib.AbstractContextManager[None]:
        return sharding.gathering_variables(model)

    def count_draws(self) -> int:
        return step.Drawn.steps

    def set_drawn(self, count: int) -> None:
        step.Drawn.steps = count

    def skip_batches(self, batches: Any, steps: int) -> None:
        """Does nothing: Keras calls a step on torch with a list of batches, which have been drawn."""

    def current_step(self) -> Step[torch.Tensor] | None:
        return step.current_step()

    def rank_to_seed(self) -> int:
        found = step.current_step()
        return found.session.world.rank if found and found.training else 0

    def reduce_gradients(self, optimizer: Any, grads: Sequence[Any]) -> Sequence[Any]:
        return gradients.reduce_gradients(optimizer, grads)

    def average(self, optimizer: Any, comm: Communicator) -> None:
        gradients.average(optimizer, comm)

    def finite_everywhere(self, optimizer: Any, finite: Any) -> Any:
        return gradients.finite_everywhere(optimizer, finite)

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        found = step.current_step()
        with found.pausing_notes() if found else contextlib.nullcontext(), timing.updating():
            yield


def _holder(variable: Any) -> Any:
    """Returns the tensor of a Keras variable, or the variable itself if it is torch's."""
    return getattr(variable, "_value", variable)
