"""Exchanges of TensorFlow tensors, as ops that run eagerly and inside `tf.function`.

Every exchange is one `tf.numpy_function`. The executor is free to run them beside the backward
pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import tensorflow as tf

from syrtos.comm import compression, fusion, world
from syrtos.comm.communicator import Array, Bounds, Communicator, ReduceOp
from syrtos.comm.sparse import sum_repeated_rows, weighted_rows
from syrtos.errors import ConfigurationError
from syrtos.keras.tensorflow import op_errors, tf_internals, tf_internals_graphs
from syrtos.keras.tensorflow.types import Gradient

# -- ops of the native API: shapes and semantics as in `syrtos.api` -------------------------------


def allreduce(comm: Communicator, value: tf.Tensor, op: ReduceOp = ReduceOp.SUM) -> tf.Tensor:
    """Reduces a tensor over the workers.

    It is differentiable for SUM and MEAN: the gradient is reduced the same way.
    """

    @tf_internals.custom_gradient
    def forward(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        result = exchange(lambda a: [comm.allreduce(a, op)], [x], [x.dtype])[0]
        result.set_shape(x.shape)
        return result, lambda dy: allreduce(comm, dy, op)

    return forward(value)


def allgather(comm: Communicator, value: tf.Tensor) -> tf.Tensor:
    """Gathers the rows of all workers.

    It is differentiable: each worker gets the summed gradient of its own rows.
    """

    @tf_internals.custom_gradient
    def forward(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        result = exchange(lambda a: [comm.allgather(a)], [x], [x.dtype])[0]
        result.set_shape([None, *x.shape[1:]])

        def backward(dy: tf.Tensor) -> tf.Tensor:
            counts = allgather(comm, tf.shape(x)[:1])
            start = tf.reduce_sum(counts[: comm.rank])
            return allreduce(comm, dy)[start : start + tf.shape(x)[0]]

        return result, backward

    return forward(value)


def broadcast(comm: Communicator, value: tf.Tensor, root: int = 0) -> tf.Tensor:
    """Gives all workers the root's tensor.

    It is differentiable: the root gets the summed gradient, the others zero.
    """

    @tf_internals.custom_gradient
    def forward(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        result = exchange(lambda a: [comm.broadcast(a, root)], [x], [x.dtype])[0]
        result.set_shape(x.shape)
        return result, lambda dy: allreduce(comm, dy) * tf.cast(comm.rank == root, dy.dtype)

    return forward(value)


def reducescatter(comm: Communicator, value: tf.Tensor, op: ReduceOp = ReduceOp.SUM) -> tf.Tensor:
    """Returns this worker's rows of the reduced tensor."""
    result = exchange(lambda a: [comm.reducescatter(a, op)], [value], [value.dtype])[0]
    result.set_shape([None, *value.shape[1:]])
    return result


def alltoall(
    comm: Communicator, value: tf.Tensor, splits: tf.Tensor | Sequence[int] | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the received rows, and how many came from each worker (int32)."""
    counts = tf.zeros([0], tf.int32) if splits is None else tf.cast(splits, tf.int32)

    def run(rows: Array, wanted: Array) -> list[Array]:
        got, received = comm.alltoall(rows, wanted.tolist() if wanted.size else None)
        return [got, np.asarray(received, np.int32)]

    result, received = exchange(run, [value, counts], [value.dtype, tf.int32])
    result.set_shape([None, *value.shape[1:]])
    received.set_shape([comm.size])
    return result, received


# -- gradients of one step ------------------------------------------------------------------------


def weighted_mean(
    comm: Communicator,
    gradients: Sequence[Gradient],
    weight: tf.Tensor,
    may_merge: bool = False,
    lend: bool = False,
    variables: Sequence[object] = (),
    bounds: Bounds = (),
    may_be_whole: bool = False,
) -> list[Gradient]:
    """Averages a step's gradients over all workers; worker ``r``'s count by ``weight[r] / total``.

    Args:
        comm: the workers.
        gradients: tensors or `tf.IndexedSlices`, in the order of the variables.
        weight: float32 scalar; a worker with weight 0 contributes nothing, whatever its gradients
            hold.
        may_merge: see `syrtos.comm.sparse.weighted_rows`.
        lend: whether the averages may be memory that other workers look at too. TensorFlow does not
            write to it; to a slice of it (`x[:n]`, `tf.split`) the next operation does, so such
            tensors are not for a script's own code.
        variables: the variables of the gradients, which may be compressed if they are given.
        bounds: for each gradient the bounds of the workers' parts. Of a dense one each worker then
            gets its own part of the average alone, flat: see `Communicator.weighted_part_sum`.
        may_be_whole: see `syrtos.comm.sparse.weighted_rows`.
    """
    results: list[Gradient] = list(gradients)
    for bucket in buckets(gradients):
        summed: Sequence[Gradient]
        owners = [variables[i] for i in bucket] if variables else []
        if bounds and not isinstance(gradients[bucket[0]], tf.IndexedSlices):
            dense = cast("list[tf.Tensor]", [gradients[i] for i in bucket])
            summed = _exchange_parts(comm, dense, weight, [bounds[i] for i in bucket])
        elif isinstance(rows := gradients[bucket[0]], tf.IndexedSlices):  # they travel alone
            summed = [_exchange_rows(comm, rows, weight, may_merge, may_be_whole)]
        else:
            dense = cast("list[tf.Tensor]", [gradients[i] for i in bucket])
            summed = _exchange_bucket(comm, dense, weight, lend, owners)
        for index, tensor in zip(bucket, summed, strict=True):
            results[index] = tensor
    return results


def buckets(gradients: Sequence[Gradient]) -> list[list[int]]:
    """Groups the indices of gradients that travel together, the last variables first.

    The backward pass makes them in this order. Sparse gradients travel alone.
    """
    backwards = [i for i in reversed(range(len(gradients))) if gradients[i] is not None]
    groups: list[list[int]] = []
    for i in backwards:  # a run of dense gradients of one dtype
        kind = _kind(gradients[i])
        if kind is None or not groups or _kind(gradients[groups[-1][0]]) != kind:
            groups.append([])
        groups[-1].append(i)
    return [
        [group[k] for k in bucket]
        for group in groups
        for bucket in fusion.plan_of_run([_nbytes(gradients[i]) for i in group])
    ]


def _kind(gradient: Gradient) -> tf.DType | None:
    return None if isinstance(gradient, tf.IndexedSlices) else gradient.dtype


def _nbytes(gradient: Gradient) -> int:
    if isinstance(gradient, tf.IndexedSlices):
        return 0
    return (gradient.shape.num_elements() or 0) * gradient.dtype.size


def _exchange_bucket(
    comm: Communicator,
    dense: list[tf.Tensor],
    weight: tf.Tensor,
    lend: bool,
    variables: list[object],
) -> Sequence[Gradient]:
    def run(share: Array, *arrays: Array) -> list[Array]:
        return compression.weighted_mean(comm, arrays, float(share), variables, lend)

    name = f"gradients: {len(dense)} tensors, {sum(map(_nbytes, dense)) / 1e6:.3g} MB"
    summed = exchange(run, [weight, *dense], [g.dtype for g in dense], telling_of_sum(), name)
    for result, gradient in zip(summed, dense, strict=True):
        result.set_shape(gradient.shape)
    return summed


def telling_of_sum() -> Callable[[], None] | None:
    """Returns a function that tells the ledger of an exchange of gradients or of update parts.

    It is None eagerly, where more than the update follows.
    """
    return None if tf.executing_eagerly() else world.current().ledger.note_sum


def _exchange_parts(
    comm: Communicator, bucket: list[tf.Tensor], weight: tf.Tensor, bounds: Bounds
) -> list[tf.Tensor]:
    def run(share: Array, *arrays: Array) -> list[Array]:
        return comm.weighted_part_sum([array.reshape(-1) for array in arrays], bounds, float(share))

    parts = exchange(run, [weight, *bucket], [g.dtype for g in bucket], telling_of_sum())
    for part, ranges in zip(parts, bounds, strict=True):
        start, stop = ranges[comm.rank]
        part.set_shape([stop - start])
    return parts


def _exchange_rows(
    comm: Communicator,
    gradient: tf.IndexedSlices,
    weight: tf.Tensor,
    may_merge: bool,
    may_be_whole: bool,
) -> tf.IndexedSlices:
    # Of such rows one process has none twice, and optimizers square what stands twice by itself;
    # those whose rows may be merged add them up.
    is_unique = not may_merge and tf_internals_graphs.is_unique(gradient.indices)

    def run(share: Array, values: Array, indices: Array, rows: Array) -> list[Array]:
        found = weighted_rows(
            comm, values, indices, int(rows), float(share), may_merge, may_be_whole
        )
        return list(sum_repeated_rows(*found) if is_unique else found)

    assert gradient.dense_shape is not None
    rows = tf.cast(gradient.dense_shape[0], tf.int64)
    inputs = [weight, gradient.values, gradient.indices, rows]
    values, indices = exchange(
        run, inputs, [gradient.values.dtype, gradient.indices.dtype], telling_of_sum()
    )
    values.set_shape([None, *gradient.values.shape[1:]])
    indices.set_shape([None])
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


# -- the op ---------------------------------------------------------------------------------------


def exchange(
    function: Callable[..., Sequence[Array]],
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    then: Callable[[], None] | None = None,
    name: str = "",
) -> list[tf.Tensor]:
    """Runs ``function(*arrays)`` on the host, after the exchange before it and before the next one.

    ``then`` runs when the time of the exchange has been counted. A profile shows the exchange as
    ``name``. Its time goes into the ledger as ``exchange``, without the time of waiting for other
    workers, which the watchdog has noted as ``wait``.

    Raises:
        ConfigurationError: in a `tf.function` that XLA compiles.
    """
    if tf_internals.is_compiled() and not tf.executing_eagerly():
        raise ConfigurationError(
            "A `tf.function` with jit_compile=True exchanges values between workers, or looks at"
            " them (an optimizer's update, a reduction): XLA can't compile that. Leave jit_compile"
            " out there, or keep it on a function that computes the gradients alone, and apply them"
            " outside of it."
        )
    session = world.current()

    def run_measured(_token: Array, *arrays: Array) -> list[Array]:
        started, waited = time.perf_counter(), session.watchdog.waited
        with world.remembering_errors():
            results = function(*(np.asarray(array) for array in arrays))
        waited = session.watchdog.waited - waited
        session.ledger.spend("exchange", time.perf_counter() - started - waited, name)
        if then:
            then()
        return [np.zeros((), np.int32), *results]

    with tf_internals_graphs.after_pending_control_flow(), op_errors.raising():
        # All workers must make exchanges in the same order, so each op of a graph takes a token
        # from the one before it.
        made = tf.numpy_function(
            run_measured, [tf_internals_graphs.last_token(), *inputs], [tf.int32, *dtypes]
        )
    token, *results = tf.nest.flatten(made)  # eagerly, a list of one comes as the one
    tf_internals_graphs.set_last_token(token)
    return results
