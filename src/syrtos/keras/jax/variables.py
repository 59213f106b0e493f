"""What the core asks of JAX about variables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from keras.src.distribution import distribution_lib

from syrtos.comm import world
from syrtos.keras import state
from syrtos.keras.backend import Backend


class Jax(Backend):
    """Keras 3 on JAX."""

    name = "jax"
    global_program = True

    def eager(self) -> bool:
        return True

    def identity(self, variable: Any) -> int:
        return id(variable)

    def has_value(self, variable: Any) -> bool:
        return True

    def memory_of(self, variable: Any) -> npt.NDArray[Any]:
        return whole(variable.value)

    def splits_variables(self) -> bool:
        return distribution_lib.distribution() is not None and not isinstance(
            distribution_lib.distribution(), distribution_lib.DataParallel
        )

    def settle(self, model: Any) -> None:
        model.jax_state_sync()


# What `gathered` has gathered, by the identity of the array.
_gathered: dict[int, npt.NDArray[Any]] = {}


@contextlib.contextmanager
def gathered(model: Any) -> Iterator[None]:
    """Inside, one worker alone can read all variables of a model, to save it. All workers must enter."""
    split = [
        v.value for v in state.of_model(model) if not (v.value.is_fully_replicated or v.value.is_fully_addressable)
    ]
    _gathered.update({id(value): whole(value) for value in split})
    try:
        yield
    finally:
        _gathered.clear()


def whole(value: Any) -> npt.NDArray[Any]:
    """The whole of an array; one that is split over processes is gathered, so all of them must call this."""
    if not isinstance(value, jax.Array) or value.is_fully_replicated or value.is_fully_addressable:
        return np.asarray(value)
    if id(value) in _gathered:
        return _gathered[id(value)]
    world.current().comm.agree("read a variable that is split over the workers")
    everywhere = jax.sharding.NamedSharding(value.sharding.mesh, jax.sharding.PartitionSpec())  # pyright: ignore[reportAttributeAccessIssue]
    return np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(value))
