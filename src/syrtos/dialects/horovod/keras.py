"""The modules `horovod.keras` and `horovod.tensorflow.keras`.

Exchanges take anything that is a tensor or becomes one, and return tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from syrtos.dialects.horovod import callbacks, ops
from syrtos.dialects.horovod import keras_elastic as elastic
from syrtos.dialects.horovod import optimizer as common
from syrtos.dialects.horovod.basics import (
    ProcessSet,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from syrtos.dialects.horovod.compression import Compression
from syrtos.dialects.horovod.functions import broadcast_global_variables
from syrtos.dialects.horovod.ops import Adasum, Average, Sum
from syrtos.dialects.horovod.optimizer import load_model

if TYPE_CHECKING:
    from tensorflow._aliases import TensorCompatible

    from syrtos.comm.communicator import ReduceOp
    from syrtos.dialects.protocols import DialectLayer, DialectOptimizer
    from syrtos.keras.tensorflow import reduction
    from syrtos.keras.tensorflow.types import Gradient

OptimizerT = TypeVar("OptimizerT", bound="DialectOptimizer")

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "PartialDistributedOptimizer", "ProcessSet", "Sum",
    "add_process_set", "allgather", "allreduce", "broadcast", "broadcast_global_variables", "callbacks", "ccl_built",
    "cross_rank", "cross_size", "cuda_built", "ddl_built", "elastic", "global_process_set", "gloo_built",
    "gloo_enabled", "init", "is_homogeneous", "is_initialized", "load_model", "local_rank", "local_size", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "reducescatter", "remove_process_set", "rocm_built",
    "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip


def DistributedOptimizer(
    optimizer: OptimizerT,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: reduction.GradientCompression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: common.Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> OptimizerT:
    """Calls `syrtos.dialects.horovod.optimizer.DistributedOptimizer`.

    The order of arguments is this module's own.
    """
    return common.DistributedOptimizer(
        optimizer, name, False, device_dense, device_sparse, compression, sparse_as_dense, backward_passes_per_step, op,
        gradient_predivide_factor, average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip


def PartialDistributedOptimizer(
    optimizer: OptimizerT,
    *args: Any,
    local_layers: DialectLayer | Iterable[DialectLayer] | None = None,
    **kwargs: Any,
) -> OptimizerT:
    """Makes a `DistributedOptimizer` that leaves variables of ``local_layers`` to each worker."""
    made = DistributedOptimizer(optimizer, *args, **kwargs)
    for variable in common.variables_of_layers(local_layers):
        made.register_local_var(variable)
    return made


def allreduce(
    value: TensorCompatible | tf.IndexedSlices,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: reduction.GradientCompression = Compression.none,
) -> Gradient:
    """Returns the reduced value."""
    return ops.allreduce(
        value, average, "", "", compression, op, prescale_factor, postscale_factor, name
    )  # fmt: skip


def allgather(value: TensorCompatible, name: str | None = None) -> tf.Tensor:
    """Returns the values of all workers, concatenated along the first axis."""
    return ops.allgather(value, name)


def broadcast(value: TensorCompatible, root_rank: int, name: str | None = None) -> tf.Tensor:
    """Returns the root's value."""
    return ops.broadcast(value, root_rank, name)


def reducescatter(
    value: TensorCompatible, name: str | None = None, op: ReduceOp = Average
) -> tf.Tensor:
    """Returns this worker's rows of the reduced value."""
    return ops.reducescatter(value, op=op, name=name)
