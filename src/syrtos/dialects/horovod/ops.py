"""Horovod's exchanges of tensors, over the core's.

All are differentiable, eagerly and inside `tf.function`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from syrtos.api import unconverted
from syrtos.comm import joining
from syrtos.comm.communicator import Communicator, ReduceOp
from syrtos.dialects.horovod import basics
from syrtos.dialects.horovod.basics import ProcessSet, comm_of, global_process_set
from syrtos.dialects.horovod.compression import Compression
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import op_errors, tf_internals
from syrtos.keras.tensorflow import ops as core
from syrtos.keras.tensorflow.variables import tensor_of

if TYPE_CHECKING:
    from tensorflow._aliases import TensorCompatible

    from syrtos.comm.communicator import Array
    from syrtos.dialects.protocols import DialectVariable
    from syrtos.keras.tensorflow import reduction
    from syrtos.keras.tensorflow.types import Gradient

    # A result, and the function from its gradient to that of the argument, as `tf.custom_gradient`
    # takes them.
    Differentiable = tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]

# Horovod's own tests use the module under this name.
_basics = basics
Average, Sum, Adasum = ReduceOp.MEAN, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


@unconverted
def allreduce(
    tensor: TensorCompatible | tf.IndexedSlices,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: reduction.GradientCompression = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Gradient:
    """Reduces a tensor, or rows of `tf.IndexedSlices`, over the workers; averages by default."""
    del device_dense, device_sparse, ignore_name_scope
    op, comm = chosen_op(op, average), _check_name(comm_of(process_set), "allreduce", name)
    if isinstance(tensor, tf.IndexedSlices):
        return _sparse_allreduce(comm, tensor, op, prescale_factor, postscale_factor)
    tensor = tf.convert_to_tensor(tensor)
    sent, context = compression.compress(_scale(tensor, prescale_factor))
    # The core refuses means of integers, which Horovod cuts off.
    if op is Average and sent.dtype.is_integer:
        reduced = tf.truncatediv(core.allreduce(comm, sent, Sum), tf.cast(comm.size, sent.dtype))
    else:
        reduced = core.allreduce(comm, sent, op)
    return _scale(compression.decompress(reduced, context), postscale_factor)


def _sparse_allreduce(
    comm: Communicator, rows: tf.IndexedSlices, op: ReduceOp, prescale: float, postscale: float
) -> tf.IndexedSlices:
    if op not in (Average, Sum) or prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError(
            "IndexedSlices can be summed or averaged only, without scale factors: make the gradient"
            " dense first (sparse_as_dense=True)."
        )
    # Rows of the same index stay apart: whoever applies them adds them up.
    values, indices = core.allgather(comm, rows.values), core.allgather(comm, rows.indices)
    values = values / tf.cast(comm.size, values.dtype) if op is Average else values
    return tf.IndexedSlices(values, indices, dense_shape=rows.dense_shape)


@unconverted
def grouped_allreduce(
    tensors: Sequence[TensorCompatible | tf.IndexedSlices],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: reduction.GradientCompression = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Gradient]:
    """Reduces several tensors by `allreduce`."""
    del device_dense, device_sparse, ignore_name_scope
    op, scales = chosen_op(op, average), (prescale_factor, postscale_factor)
    return [
        allreduce(
            tensor, None, "", "", compression, op, *scales, name=_numbered(name, i), process_set=process_set
        )
        for i, tensor in enumerate(tensors)
    ]  # fmt: skip


@unconverted
def allgather(
    tensor: TensorCompatible,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the workers' tensors along the first axis, whose length may differ.

    Its gradient is, as Horovod defines it, the average of the workers' gradients for this worker's
    rows.
    """
    del ignore_name_scope
    comm = _check_name(comm_of(process_set), "allgather", name)

    @tf_internals.custom_gradient
    def forward(x: tf.Tensor) -> Differentiable:
        def backward(dy: tf.Tensor) -> tf.Tensor:
            counts = core.allgather(comm, tf.shape(x)[:1])
            start = tf.reduce_sum(counts[: comm.rank])
            return core.allreduce(comm, dy, Average)[start : start + tf.shape(x)[0]]

        return core.allgather(comm, x), backward

    return forward(_with_rows(tensor))


@unconverted
def grouped_allgather(
    tensors: Sequence[TensorCompatible],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Concatenates several tensors by `allgather`."""
    del ignore_name_scope
    return [
        allgather(tensor, _numbered(name, i), process_set=process_set)
        for i, tensor in enumerate(tensors)
    ]


@unconverted
def broadcast(
    tensor: TensorCompatible,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns the root's tensor. ``root_rank`` counts in the world, also inside a process set.

    Its gradient is, as Horovod defines it, the average of the workers' gradients at the root and
    zero elsewhere.
    """
    del ignore_name_scope
    comm, root = (
        _check_name(comm_of(process_set), "broadcast", name),
        root_in(process_set, root_rank),
    )

    @tf_internals.custom_gradient
    def forward(x: tf.Tensor) -> Differentiable:
        return core.broadcast(
            comm, x, root
        ), lambda dy: core.allreduce(comm, dy, Average) * tf.cast(comm.rank == root, dy.dtype)

    return forward(tf.convert_to_tensor(tensor))


def broadcast_(
    variables: Sequence[DialectVariable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[object]:
    """Overwrites variables with the root's: at once, or in a graph by the returned operations."""
    comm, root = (
        _check_name(comm_of(process_set), "broadcast", name),
        root_in(process_set, root_rank),
    )
    if not tf.executing_eagerly():
        return [v.assign(core.broadcast(comm, tensor_of(v), root)) for v in state.unique(variables)]
    with op_errors.raising():
        state.broadcast(comm, variables, root)
    return list(variables)


@unconverted
def alltoall(
    tensor: TensorCompatible,
    splits: tf.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends groups of rows to all workers, and returns the rows that came.

    With ``splits`` it also returns how many rows came from each worker.
    """
    del ignore_name_scope
    comm = _check_name(comm_of(process_set), "alltoall", name)

    @tf_internals.custom_gradient
    def forward(
        rows: tf.Tensor,
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]:
        # The way back sends to each worker as many rows as came from it.
        result, received = core.alltoall(comm, rows, splits)
        return (result, received), lambda d_result, _: core.alltoall(comm, d_result, received)[0]

    result, received = forward(tf.convert_to_tensor(tensor))
    return result if splits is None else (result, received)


@unconverted
def reducescatter(
    tensor: TensorCompatible,
    device_dense: str = "",
    compression: reduction.GradientCompression = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Returns this worker's rows of the reduced tensor.

    The first workers get one row more if the tensor doesn't divide evenly. The gradient is, as
    Horovod defines it, that of all workers' rows, times the number of workers for Sum.
    """
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise ValueError("reducescatter splits along the first axis, but received a scalar.")
    if op not in (Average, Sum):
        raise NotImplementedError(f"reducescatter knows Average and Sum. Received: {op}.")
    comm = comm_of(process_set)

    @tf_internals.custom_gradient
    def forward(x: tf.Tensor) -> Differentiable:
        scales = (prescale_factor, postscale_factor)
        # The whole, of which each worker takes its rows: so compression and scales are those of
        # `allreduce`.
        reduced = allreduce(
            x,
            None,
            device_dense,
            "",
            compression,
            op,
            *scales,
            name,
            process_set,
            ignore_name_scope,
        )
        assert isinstance(reduced, tf.Tensor)  # as what was reduced
        parts, place = comm.size, comm.rank
        each, more = tf.shape(x)[0] // parts, tf.math.floormod(tf.shape(x)[0], parts)
        start = place * each + tf.minimum(place, more)
        mine = reduced[start : start + each + tf.cast(place < more, tf.int32)]
        factor = prescale_factor * postscale_factor * (parts if op is Sum else 1)
        return mine, lambda dy: _scale(core.allgather(comm, dy), factor)

    return forward(tensor)


def grouped_reducescatter(
    tensors: Sequence[TensorCompatible],
    device_dense: str = "",
    compression: reduction.GradientCompression = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Reduces several tensors by `reducescatter`."""
    return [
        reducescatter(
            tensor, device_dense, compression, op, _numbered(name, i), process_set, ignore_name_scope, prescale_factor,
            postscale_factor,
        )
        for i, tensor in enumerate(tensors)
    ]  # fmt: skip


def join() -> int:
    """Takes part in the exchanges of the other workers, adding zeros, until all have joined.

    Returns the rank that joined last.
    """
    return joining.join(basics.session().comm)


def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns `rank` as a tensor."""
    return tf.constant(basics.rank(), tf.int32, name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns `local_rank` as a tensor."""
    return tf.constant(basics.local_rank(), tf.int32, name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns the size of a process set as a tensor."""
    return tf.constant(basics.process_set_of(process_set_id).size() or 0, tf.int32, name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Returns `local_size` as a tensor."""
    return tf.constant(basics.local_size(), tf.int32, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns, as a tensor, 1 if this worker is a member of the process set, else 0."""
    return tf.constant(
        int(bool(basics.process_set_of(process_set_id).included())), tf.int32, name=name
    )


# -- helpers, also of the other modules ------------------------------------------------------------


def chosen_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """Returns the op that the two ways of asking mean together.

    Raises:
        ValueError: both were used.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        return Sum if average is False else Average
    return op


def root_in(process_set: ProcessSet, root_rank: int) -> int:
    """Returns the root's rank inside the set.

    Raises:
        ValueError: the root is no member.
    """
    members = process_set._registered_ranks()
    if root_rank not in members:
        raise ValueError(f"root_rank {root_rank} is no member of {process_set}.")
    return members.index(root_rank)


def _check_name(comm: Communicator, call: str, name: str | None) -> Communicator:
    """Returns the communicator after workers have compared the names of the exchanged tensors."""
    # Workers that exchange tensors under different names are told, instead of mixing them up.
    if name is not None and comm.size > 1:

        def compare() -> list[Array]:
            comm.agree(f"tensor {call} {name}")
            return []

        # In a graph too, and in the order of its exchanges.
        core.exchange(compare, [], [])
    return comm


def _numbered(name: str | None, index: int) -> str | None:
    """Returns the name of one tensor of a group."""
    return None if name is None else f"{name}.{index}"


def _scale(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating and tensor.dtype.size > 2:
        return tensor * tf.cast(factor, tensor.dtype)
    # Integers, and halves: the factor itself would be rounded to their dtype.
    return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)


def _with_rows(tensor: TensorCompatible) -> tf.Tensor:
    tensor = tf.convert_to_tensor(tensor)
    # There is no first axis to concatenate scalars along.
    return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor
