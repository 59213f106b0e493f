"""The exchanges of a partitioned program: reductions of partial values, and gathers of rows."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.comm import compression
from syrtos.comm.arrays import Array, ReduceOp
from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.keras.features import finite
from syrtos.keras.tensorflow import ops
from syrtos.keras.tensorflow.partition.share import Share
from syrtos.keras.tensorflow.partition.values import Partial, Value


class Exchanges(abc.ABC):
    """The exchanges with the other workers that a partitioned program makes.

    Attributes:
        rank: this worker's number.
        size: the number of workers.
        bucket_bytes: partial values of so many bytes are reduced beside the computation of others.
    """

    rank: int
    size: int
    bucket_bytes: int = 32 << 20

    def kind_of(self, value: Value) -> object:
        """Returns what partial values have in common that are reduced in one exchange."""
        assert isinstance(value.placement, Partial)
        return value.placement.op, value.tensor.dtype

    @abc.abstractmethod
    def reduce(self, values: Sequence[Value]) -> list[tf.Tensor]:
        """Reduces partial values of one kind elementwise over the workers, in one exchange."""

    @abc.abstractmethod
    def gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenates the workers' tensors along their first dimension, in one exchange."""


class NoExchanges(Exchanges):
    """The exchanges of a program in which each worker has the whole batch: it makes none."""

    rank, size = 0, 1

    def reduce(self, values: Sequence[Value]) -> list[tf.Tensor]:
        return [value.tensor for value in values]

    def gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(tensors)


class WorkerExchanges(Exchanges):
    """The exchanges of a world of workers, each one operation of the graph.

    Attributes:
        gradients_of: for each exchange of gradients so far their variables.
    """

    def __init__(self, session: Session, share: Share) -> None:
        """
        Args:
            session: the workers.
            share: this worker's rows.
        """
        self._session, self._comm, self._share = session, session.comm, share
        self.rank, self.size = session.comm.rank, session.comm.size
        self.gradients_of: list[list[Any]] = []
        self.bucket_bytes = int(session.options.bucket_mb * 1e6)

    def kind_of(self, value: Value) -> object:
        return super().kind_of(value), self._is_compressed(value)

    def _is_compressed(self, value: Value) -> bool:
        return self._session.options.compress != "none" and value.gradient_of is not None

    def reduce(self, values: Sequence[Value]) -> list[tf.Tensor]:
        assert isinstance(values[0].placement, Partial)
        op, compresses = values[0].placement.op, self._is_compressed(values[0])
        tensors = [value.tensor for value in values]
        lend = [value.is_only_read for value in values]
        gradients = [i for i, value in enumerate(values) if value.gradient_of is not None]
        variables = [values[i].gradient_of for i in gradients]
        comm, norms = self._comm, self._session.ledger.norms
        if variables:
            self.gradients_of.append(variables)

        def run(weight: Array, *arrays: Array) -> list[Array]:
            part = float(weight)
            if compresses:
                # the codec takes means of rows, and how much each worker's counts
                means = [array / array.dtype.type(part or 1.0) for array in arrays]
                found = compression.weighted_mean(comm, means, part, variables, all(lend))
            else:
                found = reduce_arrays(comm, arrays, op, lend)
            terms, sums = ([given[i] for i in gradients] for given in (arrays, found))
            finite.note_terms(terms, sums)
            if not compresses:
                norms.add_sums(terms, sums, part)
            return found

        nbytes = sum((t.shape.num_elements() or 0) * t.dtype.size for t in tensors) / 1e6
        kind = "gradients" if gradients else "sums" if op is ReduceOp.SUM else op.value
        name = f"{kind}: {len(gradients) or len(tensors)} tensors, {nbytes:.3g} MB"
        weight = tf.cast(self._share.count / self._share.total, tf.float32)
        reduced = ops.exchange(
            run, [weight, *tensors], [t.dtype for t in tensors], ops.telling_of_sum(), name
        )
        for result, tensor in zip(reduced, tensors, strict=True):
            result.set_shape(tensor.shape)
        return reduced

    def gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        comm = self._comm

        def run(*arrays: Array) -> list[Array]:
            return [gather_arrays(comm, array) for array in arrays]

        gathered = ops.exchange(run, list(tensors), [t.dtype for t in tensors], None, "rows")
        for result, tensor in zip(gathered, tensors, strict=True):
            if tensor.shape.rank is not None:
                result.set_shape([None, *tensor.shape[1:]])
        return gathered


def reduce_arrays(
    comm: Communicator, arrays: Sequence[Array], op: ReduceOp, lend: Sequence[bool] = ()
) -> list[Array]:
    """Reduces arrays of one dtype over the workers.

    Args:
        comm: the workers.
        arrays: the same shapes on every worker.
        op: the reduction.
        lend: says of each result whether it may be memory that other workers look at too; without
            it none may.
    """
    if arrays[0].dtype == bool:
        found = reduce_arrays(comm, [array.astype(np.uint8) for array in arrays], op)
        return [array.astype(bool) for array in found]
    flat = [array.reshape(-1) for array in arrays]
    if op is ReduceOp.SUM and sum(part.size for part in flat):
        comm.agree(f"sum {flat[0].dtype} {','.join(str(part.size) for part in flat)}")
        comm.sums, comm.summed = comm.sums + 1, comm.summed + sum(part.nbytes for part in flat)
        found = comm.reduce_parts(flat, op, [1.0] * comm.size, lend=any(lend))
        if any(lend):
            found = [
                part if lends else part.copy() for part, lends in zip(found, lend, strict=True)
            ]
    else:
        joined = comm.allreduce(np.concatenate(flat), op)
        found = np.split(joined, np.cumsum([part.size for part in flat])[:-1])
    return [part.reshape(array.shape) for part, array in zip(found, arrays, strict=True)]


def gather_arrays(comm: Communicator, array: Array) -> Array:
    """Concatenates the rows of all workers; strings travel as plain data."""
    if array.dtype != object:
        return comm.allgather(array)
    parts = comm.allgather_object(array.tolist())
    rest = array.shape[1:]
    return np.concatenate([np.asarray(part, object).reshape(-1, *rest) for part in parts])
