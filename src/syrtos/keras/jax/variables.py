"""The implementation of `syrtos.keras.backend.Backend` for JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from keras.src.distribution import distribution_lib

from syrtos.comm import world
from syrtos.keras.backend import Backend
from syrtos.keras.features import sharding
from syrtos.keras.jax import profiler
from syrtos.keras.jax.distribution import sharding_replicated_on
from syrtos.keras.replica import snapshot, state
from syrtos.observe.trace import ProfiledEvent


class Jax(Backend):
    """Keras 3 on JAX."""

    name = "jax"
    global_program = True

    def device_memory(self) -> int:
        return int((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))

    def start_profiler(self, folder: Path) -> Callable[[], Sequence[ProfiledEvent]]:
        return profiler.start(folder)

    def annotation(self, name: str) -> contextlib.AbstractContextManager[object]:
        return profiler.annotation(name)

    def eager(self) -> bool:
        return True

    def held_object(self, variable: Any) -> Any:
        return variable  # its array is another after each step

    def has_value(self, variable: Any) -> bool:
        return True

    def memory_of(self, variable: Any) -> npt.NDArray[Any]:
        return whole(variable.value)

    def splits_variables(self) -> bool:
        split = not isinstance(distribution_lib.distribution(), distribution_lib.DataParallel | None)
        return split or sharding.is_asked()

    def gathering_variables(self, model: Any) -> contextlib.AbstractContextManager[None]:
        return gathering_variables(model)

    def settle(self, model: Any) -> None:
        model.jax_state_sync()


# The arrays that `gathering_variables` has gathered, by the identity of the split array.
_gathered: dict[int, npt.NDArray[Any]] = {}


@contextlib.contextmanager
def gathering_variables(model: Any) -> Iterator[None]:
    """Lets one worker alone read all variables of a model, to save it, within the context. All workers must enter."""
    found = state.unique([*state.of_model(model), *snapshot.slots_of(model)])
    split = [v.value for v in found if is_split(v.value)]
    _gathered.update({id(value): whole(value) for value in split})
    try:
        yield
    finally:
        _gathered.clear()


def is_split(value: Any) -> bool:
    """Returns whether this process holds only a part of an array."""
    return isinstance(value, jax.Array) and not (value.is_fully_replicated or value.is_fully_addressable)


def whole(value: Any) -> npt.NDArray[Any]:
    """Returns the whole of an array.

    One that is split over processes is gathered, so all of them must call this.
    """
    if not is_split(value):
        return np.asarray(value)
    if id(value) in _gathered:
        return _gathered[id(value)]
    world.current().comm.agree("read a variable that is split over the workers")
    return np.asarray(jax.jit(lambda x: x, out_shardings=sharding_replicated_on(value.sharding.mesh))(value))
