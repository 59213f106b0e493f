"""SageMaker's data parallel library, `smdistributed.dataparallel.tensorflow`, on any machine.

Semantics: the public API pages of the sagemaker Python SDK (doc/api/training/sdp_versions).
Differences are listed in docs/dialects.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

import tensorflow as tf

from syrtos import errors
from syrtos.api import unconverted
from syrtos.comm import communicator, world
from syrtos.dialects import explicit_exchange, keras2
from syrtos.dialects.horovod.compression import Compression
from syrtos.keras import updates
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import gradients
from syrtos.keras.tensorflow import ops as core
from syrtos.keras.tensorflow.reduction import Reduction

if TYPE_CHECKING:
    from tensorflow._aliases import TensorCompatible

    from syrtos.dialects.protocols import DialectOptimizer, DialectVariable
    from syrtos.keras.tensorflow import reduction

OptimizerT = TypeVar("OptimizerT", bound="DialectOptimizer")
Value = TypeVar("Value")

__all__ = [
    "Compression", "DistributedGradientTape", "DistributedOptimizer", "ReduceOp", "allreduce", "broadcast",
    "broadcast_global_variables", "broadcast_variables", "init", "local_rank", "local_size", "oob_allreduce", "overlap",
    "rank", "shutdown", "size",
]  # fmt: skip


class ReduceOp(enum.Enum):
    """The ways to reduce values."""

    AVERAGE = "mean"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


class _Initialization:
    """The changes that `init` has made in this process."""

    def __init__(self, _session: world.Session) -> None:
        self.done = False


def _is_initialized() -> bool:
    return world.is_initialized() and world.part(_Initialization).done


def init() -> None:
    """Joins the world.

    Raises:
        RuntimeError: it has been called before.
    """
    if _is_initialized():
        raise RuntimeError(
            "init() called more than once. smdistributed.dataparallel is already initialized."
        )
    explicit_exchange.begin("smdistributed.dataparallel")
    world.part(_Initialization).done = True


def shutdown() -> None:
    """Ends the use of the library."""
    if _is_initialized():
        world.part(_Initialization).done = False


@unconverted
def rank() -> int:
    """Returns this worker's rank."""
    return _session().world.rank


@unconverted
def size() -> int:
    """Returns the number of workers."""
    return _session().world.size


@unconverted
def local_rank() -> int:
    """Returns this worker's rank on its host."""
    return _session().world.local_rank


@unconverted
def local_size() -> int:
    """Returns the number of workers on this host."""
    return _session().world.local_size


@unconverted
def allreduce(
    tensor: TensorCompatible | tf.IndexedSlices,
    param_index: int,
    num_params: int,
    compression: reduction.GradientCompression = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
) -> tf.Tensor:
    """Reduces one gradient of ``num_params``.

    Raises:
        ConfigurationError: ``param_index`` is not one of the parameters.
    """
    comm = _session().comm
    if not 0 <= param_index < num_params:
        raise errors.ConfigurationError(
            f"allreduce needs 0 <= param_index < num_params. Received: param_index={param_index}, "
            f"num_params={num_params}."
        )
    if isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    sent, context = compression.compress(tf.convert_to_tensor(tensor))
    return compression.decompress(
        core.allreduce(comm, sent, communicator.ReduceOp(op.value)), context
    )


@unconverted
def oob_allreduce(
    tensor: TensorCompatible | tf.IndexedSlices,
    compression: reduction.GradientCompression = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
) -> tf.Tensor:
    """Averages a value that is no gradient, e.g. a loss to print.

    Raises:
        ConfigurationError: the op is not AVERAGE.
    """
    if op is not ReduceOp.AVERAGE:
        raise errors.ConfigurationError(
            f"oob_allreduce averages. Received: op={op}. Use allreduce for others."
        )
    return allreduce(tensor, 0, 1, compression, op)


@unconverted
def overlap(tensor: Value) -> Value:
    """Returns the tensor."""
    # Exchanges run beside the backward pass without marks in it.
    return tensor


@unconverted
def broadcast(tensor: TensorCompatible, root_rank: int) -> tf.Tensor:
    """Returns the root's tensor."""
    return core.broadcast(_session().comm, tf.convert_to_tensor(tensor), root_rank)


@unconverted
def broadcast_variables(variables: Iterable[DialectVariable], root_rank: int) -> None:
    """Overwrites variables with the root's."""
    state.broadcast(_session().comm, variables, root_rank)


def broadcast_global_variables(root_rank: int) -> None:
    """Raises an error: only TensorFlow 1 kept all variables in its graph.

    Raises:
        RuntimeError: always: TensorFlow 2 has no such list.
    """
    raise RuntimeError(
        "broadcast_global_variables() needs TensorFlow 1's list of all variables. Write "
        f"broadcast_variables(model.variables, root_rank={root_rank})."
    )


def DistributedOptimizer(
    optimizer: OptimizerT,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: reduction.GradientCompression = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.AVERAGE,
    bucket_cap_mb: int = 25,
) -> OptimizerT:
    """Makes a Keras optimizer average its gradients before it applies them.

    Raises:
        ConfigurationError: it is not an optimizer of Keras, or the op is not AVERAGE.
    """
    # The original knew only TensorFlow 1's optimizers, and no `fit`; here it is the way to use
    # `fit`.
    del name, use_locking, bucket_cap_mb
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not keras2.is_optimizer(inner):
        raise errors.ConfigurationError(
            f"DistributedOptimizer takes Keras optimizers. Received: {type(optimizer).__name__}."
            " For loops of one's own there is DistributedGradientTape."
        )
    updates.set_reduction(
        inner, _reduction(device_dense, device_sparse, compression, sparse_as_dense, op)
    )
    return optimizer


class DistributedGradientTape(gradients.ReducingTape):
    """A tape whose gradients are averaged over the workers."""

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: reduction.GradientCompression = Compression.none,
        sparse_as_dense: bool = True,
        op: ReduceOp = ReduceOp.AVERAGE,
    ) -> None:
        """Wraps a tape.

        Raises:
            ConfigurationError: the op is not AVERAGE, or devices are given.
        """
        super().__init__(
            gradtape, _reduction(device_dense, device_sparse, compression, sparse_as_dense, op)
        )


def _reduction(
    device_dense: str,
    device_sparse: str,
    compression: reduction.GradientCompression,
    sparse_as_dense: bool,
    op: ReduceOp,
) -> Reduction:
    comm = _session().comm
    if op is not ReduceOp.AVERAGE:
        raise errors.ConfigurationError(
            f"Gradients are averaged: op=ReduceOp.AVERAGE. Received: {op}."
        )
    if device_dense or device_sparse:
        raise errors.ConfigurationError(
            "device_dense and device_sparse are not supported, as in the original."
        )
    return Reduction(
        comm,
        compression=None if compression is Compression.none else compression,
        sparse_as_dense=sparse_as_dense,
    )


def _session() -> world.Session:
    if not _is_initialized():
        raise RuntimeError(
            "smdistributed.dataparallel has not been initialized; call init() first."
        )
    return world.current()
