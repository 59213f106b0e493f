"""What the core asks of JAX about variables."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpy.typing as npt

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

    def settle(self, model: Any) -> None:
        model.jax_state_sync()


def whole(value: Any) -> npt.NDArray[Any]:
    """The whole of an array; one that is split over processes is gathered, so all of them must call this."""
    if not isinstance(value, jax.Array) or value.is_fully_replicated or value.is_fully_addressable:
        return np.asarray(value)
    everywhere = jax.sharding.NamedSharding(value.sharding.mesh, jax.sharding.PartitionSpec())  # pyright: ignore[reportAttributeAccessIssue]
    return np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(value))
