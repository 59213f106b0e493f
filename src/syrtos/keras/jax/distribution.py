"""Global batches over the devices of all processes, each of which holds the whole batch."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from numbers import Number
from typing import TYPE_CHECKING, cast

import jax
import numpy as np
import numpy.typing as npt
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from keras import distribution as distribution_lib

from syrtos import settings
from syrtos.comm import world
from syrtos.errors import ConfigurationError, DataError
from syrtos.records import read_record, record_of
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh
    from keras.src.distribution.distribution_lib import Distribution

    from syrtos.keras.patching import Method

    # Keras's own layout, or the one that JAX makes of it.
    Layout = distribution_lib.TensorLayout | NamedSharding


# Whether this thread traces a step over all workers' devices.
_traces_step: ContextVar[bool] = ContextVar("traces_step", default=False)


@contextlib.contextmanager
def tracing_step() -> Iterator[None]:
    """Context manager around the trace of a step over the devices of all workers."""
    with set_within(_traces_step, True):
        yield


def traces_step() -> bool:
    """Returns whether this thread traces a step over the devices of all workers.

    A function that the script compiles itself may be this worker's alone.
    """
    return _traces_step.get()


@dataclasses.dataclass
class _DistributionRecord:
    """The record of a `keras.distribution` that the run has adapted.

    Attributes:
        is_adapted: whether all processes read the whole data set.
        has_own_rows: whether each process holds rows of its own, as the script has sharded the data
            set itself.
    """

    is_adapted: bool = False
    has_own_rows: bool = False


class AllDevices(distribution_lib.DataParallel):
    """A `DataParallel` over the devices of all processes."""

    def __init__(self) -> None:
        # Not Keras's own `__init__`, which asks for the devices at once: a script can configure JAX
        # until the first variable is made.
        self._auto_shard_dataset = False
        self._batch_dim_name = "batch"
        self._is_multi_process = True

    @functools.cached_property
    def device_mesh(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
    ) -> distribution_lib.DeviceMesh:
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


def adopt(distribution: Distribution | None) -> Distribution:
    """Returns the distribution that Keras is to use: a script's own, else one over all devices.

    Each process holds the whole batch, unless the script says that it has sharded the data set
    itself.

    Raises:
        ConfigurationError: the script's own is over the devices of some workers only.
    """
    if distribution is None:
        return AllDevices()
    record = record_of(distribution, _DistributionRecord)
    if isinstance(distribution, AllDevices) or record.is_adapted:
        return distribution
    _check_devices(distribution)
    record.is_adapted, record.has_own_rows = True, not distribution.auto_shard_dataset
    # Else Keras would cut the data set into parts, which here all processes read as a whole.
    distribution.auto_shard_dataset = False
    return distribution


def _check_devices(distribution: Distribution) -> None:
    missing = {str(device) for device in distribution_lib.list_devices()} - set(
        map(str, distribution.device_mesh.devices.flat)
    )
    if missing:
        raise ConfigurationError(
            f"The script's {type(distribution).__name__} leaves out devices of other workers "
            f"({', '.join(sorted(missing))}): each worker would train alone. "
            "Make it over all that `keras.distribution.list_devices()` names."
        )


def _check_gpus() -> None:
    """Raises ConfigurationError if the run asks for what JAX's workers on GPUs can't do."""
    if world.sharing().options.exchange == "mpi":
        raise ConfigurationError(
            "`--exchange mpi` has no meaning with JAX on GPUs, which exchange by NCCL. Leave it out."
        )
    # NCCL refuses such workers in the first exchange, and JAX then waits without end (seen with JAX
    # 0.11.2, NCCL 2.28).
    if settings.SHARED_GPU_VARIABLE in settings.launched_with():
        raise ConfigurationError(
            "Two workers of a host use one GPU. JAX's workers exchange by NCCL, which needs a GPU"
            " for each of them. Start as many workers as GPUs; or use the CPU:"
            " CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu; or torch, whose workers can share one."
        )


def has_own_rows() -> bool:
    """Returns whether each process holds rows of its own, which make up the global batch."""
    return read_record(_current(), _DistributionRecord).has_own_rows


def put_value(value: npt.ArrayLike, sharding: NamedSharding) -> jax.Array:
    """Returns an array over all processes, made from the whole ``value`` that each holds."""
    whole = np.asarray(value)
    # Parts are copied: JAX would share the memory of an array that the script may change.
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: np.array(whole[index]))


def put_batch(original: Method, batch: object, layouts: object = None) -> object:
    """Wraps Keras's `_distribute_data` to put a batch that every process holds on the devices.

    The rows of a leaf are split where they can be split evenly; else the leaf is whole on each
    device, as a single number is. Where each process has rows of its own, these make up the array.

    Args:
        original: is called while no array is spread over devices.
        batch: arrays and numbers in any structure.
        layouts: those that Keras knows from an earlier batch. They are not needed.

    Raises:
        DataError: a leaf is no dense array.
    """
    if not is_distributed():
        return original(batch, layouts)
    return jax.tree.map(_put_leaf, batch)


def _put_leaf(leaf: npt.ArrayLike) -> jax.Array:
    if not (hasattr(leaf, "__array__") or isinstance(leaf, Number)):
        raise DataError(
            "Batches on several workers must be dense arrays with JAX. Received:"
            f" {type(leaf).__name__}."
        )
    rows, current = np.asarray(leaf), _current()
    if not rows.ndim:
        return put_value(rows, replicated_sharding())
    sharding = _sharding_of(current.get_data_layout(rows.shape))
    if has_own_rows():
        return jax.make_array_from_process_local_data(sharding, rows)
    return _put_whole_leaf(rows, sharding, current.batch_dim_name)


def make_whole(batch: object) -> object:
    """Returns the batch of a step that is not compiled, with all rows on each device.

    Python code of the script's can then read them, e.g. by `numpy.asarray`.
    """
    return jax.device_put(batch, replicated_sharding())


def _sharding_of(layout: Layout) -> NamedSharding:
    return layout.backend_layout if isinstance(layout, distribution_lib.TensorLayout) else layout


def _put_whole_leaf(
    batch: npt.NDArray[np.generic], sharding: NamedSharding, batch_dim_name: Hashable
) -> jax.Array:
    # JAX can't split rows unevenly outside of a program. Inside of the compiled step XLA pads them.
    even = np.ndim(batch) and len(batch) % sharding.mesh.shape[batch_dim_name] == 0
    return put_value(batch, sharding if even else sharding_replicated_on(sharding.mesh))


def join_shares(samples: int, share: object) -> object:
    """Puts a batch on the devices, after each process has read its share of it.

    Returns None where no process has a row. ``samples`` is the number of this process's rows.
    """
    comm, current = world.current().comm, _current()
    counts = [int(count) for count in comm.agree("rows of a batch", float(samples))]
    if not any(counts):
        return None

    def join_leaf(leaf: npt.NDArray[np.generic]) -> jax.Array:
        shape = (sum(counts), *leaf.shape[1:])
        sharding: NamedSharding = current.get_data_layout(shape).backend_layout
        # A share stays local where the devices of its process take just its rows; else all shares
        # are exchanged.
        if len(set(counts)) == 1 and _stay_local(sharding, shape, samples, current.batch_dim_name):
            return jax.make_array_from_process_local_data(sharding, leaf, shape)
        # A share without rows has one that does not count.
        return _put_whole_leaf(comm.allgather(leaf[:samples]), sharding, current.batch_dim_name)

    return jax.tree.map(join_leaf, share)


@functools.lru_cache(maxsize=64)
def _stay_local(
    sharding: NamedSharding, shape: tuple[int, ...], each: int, batch_dim_name: Hashable
) -> bool:
    """Returns whether every process's devices take just its own rows, ``each`` per process."""
    # The answer must be the same on all processes, for what follows is an exchange or none: the map
    # has the devices of all of them.
    if shape[0] % sharding.mesh.shape[batch_dim_name]:
        return False
    bounds = {
        device: index[0].indices(shape[0])
        for device, index in sharding.devices_indices_map(shape).items()
    }
    return all(
        start // each == (stop - 1) // each == device.process_index
        for device, (start, stop, _) in bounds.items()
    )


def put_tensor(
    original: Method, value: jax.Array | npt.ArrayLike | None, layout: Layout
) -> jax.Array | None:
    """Wraps Keras's `distribute_tensor` to put a value on devices without a collective.

    This applies to a value that every process holds.
    """
    # JAX's `device_put` would compare it across processes: an exchange in each assignment, which
    # ends the run where one worker alone assigns. `fit`, `evaluate`, `predict` and the methods for
    # one batch compare the variables of all workers.
    sharding = _sharding_of(layout)
    # A value of a step that is being traced is on no device. Variables of Flax's NNX are emptied by
    # assigning None.
    if value is None or isinstance(value, Tracer) or sharding.is_fully_addressable:
        return value if value is None else original(value, layout)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return original(value, layout)
    return put_value(value, sharding)


def split_rows(data: object) -> object:
    """Tells XLA, inside a compiled step, to split the rows of a batch over the devices.

    Rows are padded where they don't divide evenly.
    """
    distribution = _current()
    sharding = NamedSharding(
        distribution.device_mesh.backend_mesh, PartitionSpec(distribution.batch_dim_name)
    )
    return jax.tree.map(
        lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding) if leaf.ndim else leaf, data
    )


def has_even_rows(data: object) -> bool:
    """Returns whether the rows of each leaf of a batch can be split evenly over the devices."""
    devices = _current().device_mesh.backend_mesh.shape[_current().batch_dim_name]
    return all(leaf.shape[0] % devices == 0 for leaf in jax.tree.leaves(data) if leaf.ndim)


def rows_sharding() -> NamedSharding | None:
    """Returns the sharding of an array whose rows are split over all devices.

    None where arrays are not spread, or something else than rows is split too.
    """
    distribution = distribution_lib.distribution()
    if not isinstance(distribution, distribution_lib.DataParallel):
        return None
    mesh = distribution.device_mesh.backend_mesh
    return (
        NamedSharding(mesh, PartitionSpec(distribution.batch_dim_name))
        if len(mesh.axis_names) == 1
        else None
    )


def is_distributed() -> bool:
    """Returns whether arrays are spread over devices.

    They are not while `verifying` computes in one process.
    """
    return distribution_lib.distribution() is not None


def replicated_sharding() -> NamedSharding:
    """Returns the sharding of an array that is whole on each device."""
    return sharding_replicated_on(_current().device_mesh.backend_mesh)


def sharding_replicated_on(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Returns the sharding of an array that is whole on each device of a mesh."""
    return NamedSharding(mesh, PartitionSpec())


def _current() -> Distribution:
    # There is one since `keras3.apply_all`, but for the time in which `verifying` computes in one
    # process.
    return cast("Distribution", distribution_lib.distribution())
