"""The implementation of `syrtos.keras.backend.Backend` for torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from syrtos.comm import world
from syrtos.comm.communicator import Array, Communicator
from syrtos.keras import updates
from syrtos.keras.backend import Backend, Step
from syrtos.keras.features import sharding
from syrtos.keras.torch import finite_steps, generators, gradients, ops, profiler, step
from syrtos.keras.torch.partition.step import to_wholes
from syrtos.keras.trainer import timing
from syrtos.observe.trace import ProfiledEvent

if TYPE_CHECKING:
    import keras

    from syrtos.comm.world import Session
    from syrtos.keras.protocols import Model, Optimizer
    from syrtos.keras.torch.step import Buffer
    from syrtos.keras.updates import Update

    # What `syrtos.keras.replica` takes for a variable, on this backend.
    AnyVariable = keras.Variable | Buffer | torch.Tensor


class Torch(Backend["AnyVariable", torch.Tensor]):
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

    def held_object(self, variable: AnyVariable) -> torch.Tensor:
        return _tensor_of(variable)

    def has_value(self, variable: AnyVariable) -> bool:
        return isinstance(variable, torch.Tensor) or variable._value is not None

    def write(self, variable: AnyVariable, value: Array) -> None:
        if not isinstance(variable, torch.Tensor):
            variable.assign(value)
            return
        # Elsewhere torch refuses to write in place to a tensor that requires a gradient.
        with torch.no_grad():
            variable.copy_(ops.tensor_of(value, variable))

    def buffers_of(self, model: Model) -> list[Buffer]:
        # On torch each of Keras's models is a module.
        return step.buffers_of(cast("keras.Model", model))

    def memory_of(self, variable: AnyVariable) -> Array:
        return ops.array_of(_tensor_of(variable))

    def on_host(
        self, function: Callable[[Array], Array], value: torch.Tensor, shape: tuple[int, ...]
    ) -> torch.Tensor:
        return ops.tensor_of(function(ops.array_of(value)), value)

    def numbers(self, scalars: Sequence[torch.Tensor]) -> list[float]:
        # One copy from the device instead of one for each. A step of the script's own may return
        # anything that is a number.
        tensors = [scalar for scalar in scalars if isinstance(scalar, torch.Tensor)]
        kinds = {(tensor.device, tensor.dtype) for tensor in tensors}
        if len(tensors) == len(scalars) and len(kinds) == 1:
            return torch.stack(tensors).tolist()
        return super().numbers(scalars)

    def splits_variables(self) -> bool:
        return sharding.is_asked()

    def gathering_variables(self, model: Model) -> contextlib.AbstractContextManager[None]:
        return sharding.gathering_variables(model)

    def gather_rows(self, data: object) -> object:
        """Returns the arguments of a method with whole tensors, in a loop that is partitioned."""
        return to_wholes(data)

    def draws(self) -> dict[str, Array]:
        return world.part(generators.DrawingSteps).arrays()

    def callbacks_ended(self) -> None:
        world.part(generators.DrawingSteps).callbacks_ended()

    def epoch_computed(self) -> None:
        world.part(generators.DrawingSteps).epoch_computed()

    def epoch_begins(self, is_left_out: bool) -> None:
        steps = world.part(generators.DrawingSteps)
        steps.skip_callbacks() if is_left_out else steps.epoch_begins()

    def begin_replay(self, draws: dict[str, Array]) -> None:
        world.part(generators.DrawingSteps).begin(draws)

    def leave_out_step(self) -> None:
        world.part(generators.DrawingSteps).skip()

    def put_back_draws(self, draws: dict[str, Array]) -> None:
        world.part(generators.DrawingSteps).put_back(draws)

    def skip_batches(self, batches: object, steps: int) -> None:
        """Does nothing: Keras calls a step on torch with a list of batches already drawn."""

    def current_step(self) -> Step[torch.Tensor] | None:
        # A weight is a float there, which torch multiplies by as by a tensor.
        return cast("Step[torch.Tensor] | None", step.current_step())

    def rank_to_seed(self) -> int:
        # Outside of steps, e.g. where weights are made, all workers must draw the same.
        found = step.current_step()
        return found.rank_to_seed() if found else 0

    def reduce_gradients(
        self, optimizer: Optimizer, grads: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        return gradients.reduce_gradients(
            optimizer, cast("Sequence[torch.Tensor]", grads)
        )  # Keras has left out None

    def apply_if_rows(
        self,
        update: Update,
        grads: Sequence[torch.Tensor],
        apply: Callable[[Sequence[torch.Tensor]], None],
    ) -> None:
        gradients.apply_if_rows(update, grads, apply)

    def apply_if_finite(
        self,
        update: Update,
        grads: Sequence[torch.Tensor],
        apply: Callable[[Sequence[torch.Tensor]], None],
    ) -> None:
        finite_steps.apply_if_finite(update, grads, apply)

    def check_finite(
        self, update: Update, grads: Sequence[torch.Tensor], own: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        return finite_steps.check_finite(update, grads, own)

    def undo_if_left_out(
        self, model: Model, session: Session, step: Callable[[], object]
    ) -> Callable[[], object]:
        return finite_steps.undo_if_left_out(model, session, step)

    def average(self, optimizer: Optimizer, comm: Communicator) -> None:
        updates.set_reduction(optimizer, comm)

    def finite_everywhere(self, optimizer: Optimizer, finite: torch.Tensor) -> torch.Tensor:
        return gradients.finite_everywhere(optimizer, finite)

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        found = step.current_step()
        with found.pausing_notes() if found else contextlib.nullcontext(), timing.updating():
            yield


def _tensor_of(variable: AnyVariable) -> torch.Tensor:
    """Returns the tensor of a Keras variable, or the variable itself if it is torch's."""
    return variable if isinstance(variable, torch.Tensor) else variable._value
