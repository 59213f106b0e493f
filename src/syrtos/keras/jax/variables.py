"""The implementation of `syrtos.keras.backend.Backend` for JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding
from keras import distribution as distribution_lib

from syrtos.comm import world
from syrtos.keras.backend import Backend
from syrtos.keras.features import sharding
from syrtos.keras.jax import profiler
from syrtos.keras.jax.distribution import sharding_replicated_on
from syrtos.keras.replica import snapshot, state
from syrtos.observe.trace import ProfiledEvent
from syrtos.scopes import set_within

if TYPE_CHECKING:
    import keras

    from syrtos.keras.protocols import Logs, Model


# Numbers that become one array: the call of a compiled function takes longer the more it is given.
_AT_ONCE = 64
_stack = jax.jit(jnp.stack)


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

    def held_object(self, variable: keras.Variable) -> keras.Variable:
        # Its array is another one after each step.
        return variable

    def has_value(self, variable: keras.Variable) -> bool:
        # After `fit` an optimizer's moving averages are the very arrays of the weights, which
        # `evaluate` lends to its step: they are gone then, in one process too.
        return not (isinstance(variable.value, jax.Array) and variable.value.is_deleted())

    def memory_of(self, variable: keras.Variable) -> npt.NDArray[np.generic]:
        return gather_array(variable.value)

    def splits_variables(self) -> bool:
        split = not isinstance(
            distribution_lib.distribution(), distribution_lib.DataParallel | None
        )
        return split or sharding.is_asked()

    def gathering_variables(self, model: Model) -> contextlib.AbstractContextManager[None]:
        return gathering_variables(model)

    def gather_rows(self, data: object) -> object:
        # Arrays that the script has put on a mesh of all devices.
        if not any(map(is_split, jax.tree.leaves(data))):
            return data
        return jax.tree.map(lambda leaf: gather_array(leaf) if is_split(leaf) else leaf, data)

    def settle(self, model: Model) -> None:
        # During an epoch the trainer keeps the arrays of the last step by itself.
        cast("keras.Model", model).jax_state_sync()

    def await_values(self, logs: Logs) -> None:
        await_arrays(logs)

    def numbers(self, scalars: Sequence[jax.Array]) -> list[float]:
        # A step of the script's own may return anything that is a number.
        if not all(isinstance(scalar, jax.Array) for scalar in scalars):
            return super().numbers(scalars)
        # A copy from a GPU takes 0.1 to 0.2 ms however little it has (H200), so many numbers become
        # one array first. That is computed on this process's device alone: the other workers call
        # nothing here, and XLA would wait for them.
        mine = [scalar.addressable_data(0) for scalar in scalars]
        whole = len(mine) // _AT_ONCE * _AT_ONCE
        arrays = [_stack(mine[first : first + _AT_ONCE]) for first in range(0, whole, _AT_ONCE)]
        found = jax.device_get([*arrays, *mine[whole:]])
        return [float(number) for array in found for number in np.ravel(array)]


def await_arrays(tree: object) -> None:
    """Waits until the device has computed the arrays of a structure."""
    values = [value for value in jax.tree.leaves(tree) if isinstance(value, jax.Array)]
    # A step may hand out an array of its state, which the next one has been lent.
    jax.block_until_ready([value for value in values if not value.is_deleted()])


# The arrays that `gathering_variables` has gathered, by the identity of the split array.
_gathered: ContextVar[dict[int, npt.NDArray[np.generic]] | None] = ContextVar(
    "gathered", default=None
)


@contextlib.contextmanager
def gathering_variables(model: Model) -> Iterator[None]:
    """Context manager: lets one worker alone read all variables of a model, to save it.

    All workers must enter the context.
    """
    found = cast(
        "list[keras.Variable]", state.unique([*state.of_model(model), *snapshot.slots_of(model)])
    )
    split = [v.value for v in found if is_split(v.value)]
    with set_within(_gathered, {id(value): gather_array(value) for value in split}):
        yield


def is_split(value: object) -> TypeGuard[jax.Array]:
    """Returns whether this process holds only a part of an array."""
    return isinstance(value, jax.Array) and not (
        value.is_fully_replicated or value.is_fully_addressable
    )


def gather_array(value: npt.ArrayLike) -> npt.NDArray[np.generic]:
    """Returns the whole of an array.

    One that is split over processes is gathered, so all of them must call this.
    """
    if not is_split(value):
        return np.asarray(value)
    gathered = _gathered.get()
    if gathered and id(value) in gathered:
        return gathered[id(value)]
    # A worker that reads alone is named here: XLA's own exchange would wait for ever.
    world.current().comm.agree("read a variable that is split over the workers")
    # Keras makes no other kind of layout.
    assert isinstance(value.sharding, NamedSharding)
    return np.asarray(
        jax.jit(lambda x: x, out_shardings=sharding_replicated_on(value.sharding.mesh))(value)
    )
