"""Global batches over the devices of all processes, each of which holds the whole batch."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from keras.src.distribution import distribution_lib

from syrtos import settings
from syrtos.comm import world
from syrtos.errors import ConfigurationError, DataError

# Set on a distribution whose processes hold rows of their own, for the script has sharded the data set itself.
_OWN_ROWS = "_syrtos_own_rows"


class AllDevices(distribution_lib.DataParallel):
    """A `DataParallel` over the devices of all processes.

    Devices are asked for when the first variable is made: a script can configure JAX until then.
    """

    def __init__(self) -> None:
        self._auto_shard_dataset = False
        self._batch_dim_name = distribution_lib.DEFAULT_BATCH_DIM_NAME
        self._is_multi_process = True

    @functools.cached_property
    def device_mesh(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        devices = distribution_lib.list_devices()
        if jax.local_devices()[0].platform == "gpu":
            _check_gpus()
        return distribution_lib.DeviceMesh((len(devices),), [self._batch_dim_name], devices)

    @property
    def _num_processes(self) -> int:
        return jax.process_count()

    @property
    def _process_id(self) -> int:
        return jax.process_index()


def adopt(distribution: Any) -> Any:
    """Returns the distribution that Keras is to use: a script's own, or one over all devices where it has none.

    Each process holds the whole batch, unless the script says that it has sharded the data set itself.

    Raises:
        ConfigurationError: the script's own is over the devices of some workers only.
    """
    if distribution is None:
        return AllDevices()
    if isinstance(distribution, AllDevices) or hasattr(distribution, _OWN_ROWS):
        return distribution
    _check_devices(distribution)
    setattr(distribution, _OWN_ROWS, not distribution.auto_shard_dataset)
    distribution.auto_shard_dataset = False
    return distribution


def _check_devices(distribution: Any) -> None:
    missing = {str(device) for device in distribution_lib.list_devices()} - set(
        map(str, distribution.device_mesh.devices.flat)
    )
    if missing:
        raise ConfigurationError(
            f"The script's {type(distribution).__name__} leaves out devices of other workers ({', '.join(sorted(missing))}): each worker would train alone. "
            "Make it over all that `keras.distribution.list_devices()` names."
        )


def _check_gpus() -> None:
    """Raises ConfigurationError where this worker shares a GPU with another, as the run was asked for.

    NCCL refuses such workers in the first exchange, and JAX then waits without end (seen with JAX 0.11.2, NCCL 2.28).
    """
    if settings.SHARED_GPU_VARIABLE in settings.environment():
        raise ConfigurationError(
            "Two workers of a host use one GPU. JAX's workers exchange by NCCL, which needs a GPU for each of them. Start as many workers as GPUs; or use "
            "the CPU: CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu; or torch, whose workers can share one."
        )


def has_own_rows() -> bool:
    """Returns whether each process holds rows of its own, which make up the global batch."""
    return getattr(_current(), _OWN_ROWS, False)


def place(value: Any, sharding: Sharding) -> jax.Array:
    """Returns an array over all processes, made from the whole ``value`` that each of them holds.

    Rows are copied: JAX would share the memory of an array that the script may change.
    """
    value = np.asarray(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: np.array(value[index]))


def rows(batch: Any, layout: Any, batch_dim_name: str) -> Any:
    """Puts a leaf of a batch on the devices, split where its rows can be split evenly.

    Else it is whole on each device, to be split inside the compiled step, where XLA pads it. Where each process has
    rows of its own, these make up the array.

    Raises:
        DataError: the leaf is no dense array.
    """
    if batch is None:
        return None
    if not hasattr(batch, "__array__"):
        raise DataError(f"Batches on several workers must be dense arrays with JAX. Received: {type(batch).__name__}.")
    sharding = getattr(layout, "backend_layout", layout)
    if has_own_rows():
        return jax.make_array_from_process_local_data(sharding, np.asarray(batch))
    return _whole(batch, sharding, batch_dim_name)


def _whole(batch: Any, sharding: Any, batch_dim_name: Any) -> jax.Array:
    even = np.ndim(batch) and len(batch) % sharding.mesh.shape[batch_dim_name] == 0
    return place(batch, sharding if even else sharding_replicated_on(sharding.mesh))


def join_shares(samples: int, share: Any) -> Any:
    """Puts a batch on the devices, of which each process has read its share; None where no process has a row.

    ``samples`` is the number of this process's rows. If shares are equal and the devices of a process take just its
    rows, each share stays local; else all shares are gathered on every process.
    """
    comm, current = world.current().comm, _current()
    counts = [int(count) for count in comm.agree("rows of a batch", float(samples))]
    if not any(counts):
        return None

    def of_all(leaf: Any) -> Any:
        shape = (sum(counts), *leaf.shape[1:])
        sharding = current.get_data_layout(shape).backend_layout
        if len(set(counts)) == 1 and _stay_local(sharding, shape, samples, current.batch_dim_name):
            return jax.make_array_from_process_local_data(sharding, leaf, shape)
        return _whole(comm.allgather(leaf[:samples]), sharding, current.batch_dim_name)

    return jax.tree.map(of_all, share)


@functools.lru_cache(maxsize=64)
def _stay_local(sharding: Any, shape: tuple[int, ...], each: int, batch_dim_name: str) -> bool:
    """Returns whether the devices of every process take just its own rows, of which each process has ``each``.

    The answer is the same on all.
    """
    if shape[0] % sharding.mesh.shape[batch_dim_name]:
        return False
    bounds = {device: index[0].indices(shape[0]) for device, index in sharding.devices_indices_map(shape).items()}
    return all(
        start // each == (stop - 1) // each == device.process_index for device, (start, stop, _) in bounds.items()
    )


def tensor(original: Any, value: Any, layout: Any) -> Any:
    """Wraps Keras's `distribute_tensor`: a value that every process holds is placed without a collective.

    JAX's `device_put` would compare it across processes: an exchange in each assignment, which ends the run where one
    worker alone assigns. `fit`, `evaluate`, `predict` and the methods for one batch compare the variables of all
    workers.
    """
    sharding = getattr(layout, "backend_layout", layout)
    is_global = isinstance(value, jax.Array) and not value.is_fully_addressable
    if isinstance(value, Tracer) or is_global or sharding.is_fully_addressable:
        return original(value, layout)
    return place(value, sharding)


def split(data: Any) -> Any:
    """Tells XLA, inside a compiled step, to split the rows of a batch over the devices.

    Rows are padded where they don't divide evenly.
    """
    distribution = _current()
    sharding = NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec(distribution.batch_dim_name))
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding) if leaf.ndim else leaf, data)


def replicated_sharding() -> NamedSharding:
    """Returns the sharding of an array that is whole on each device."""
    return sharding_replicated_on(_current().device_mesh.backend_mesh)


def sharding_replicated_on(mesh: Any) -> NamedSharding:
    """Returns the sharding of an array that is whole on each device of a mesh."""
    return NamedSharding(mesh, PartitionSpec())


def _current() -> Any:
    return distribution_lib.distribution()
