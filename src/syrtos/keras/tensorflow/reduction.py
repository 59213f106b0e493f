"""The rule by which gradients are reduced over the workers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, cast, overload

import tensorflow as tf

from syrtos.comm.communicator import Bounds, Communicator, ReduceOp
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import ops
from syrtos.keras.tensorflow.types import Gradient
from syrtos.keras.trainer import exchange_plan
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.protocols import FrameworkVariable, NamedVariable
    from syrtos.keras.tensorflow.types import GradientLike, Number


# A list that takes an entry for each reduction, where somebody counts them.
_counted: ContextVar[list[None] | None] = ContextVar("counted", default=None)


@contextlib.contextmanager
def counting_reductions() -> Iterator[list[None]]:
    """Context manager: gives a list with an entry for each reduction that is made inside."""
    made: list[None] = []
    with set_within(_counted, made):
        yield made


class GradientCompression(Protocol):
    """A way to compress gradients for their exchange, e.g. in fewer bits (Horovod's interface)."""

    # A class of the script's own may choose any context, which only its own methods look at.
    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor that is sent, and the context that `decompress` needs."""
        ...

    def decompress(self, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns the gradient, from the sum or mean of the tensors that were sent."""
        ...


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The rule by which the gradients of one optimizer or tape are reduced over the workers.

    Attributes:
        comm: the workers.
        op: MEAN, SUM or ADASUM.
        factor: the number by which the reduced gradients are multiplied.
        compression: how dense gradients are compressed for the exchange; None: they are not.
        sparse_as_dense: whether `tf.IndexedSlices` are made dense first.
        local: variables that each worker trains by itself, under `state.identity`.
        local_factor: the number by which their gradients are multiplied, besides ``factor``.
        lend: whether reduced gradients may be memory that all workers of the host look at (see
            `ops.weighted_mean`).
        bounds: for each gradient the bounds of the workers' parts, if each worker gets its own part
            alone.
    """

    comm: Communicator
    op: ReduceOp = ReduceOp.MEAN
    factor: float = 1.0
    compression: GradientCompression | None = None
    sparse_as_dense: bool = False
    local: dict[int, object] = dataclasses.field(default_factory=dict)
    local_factor: float = 1.0
    lend: bool = False
    bounds: Bounds = ()

    def apply(
        self,
        grads: Sequence[GradientLike],
        variables: Sequence[NamedVariable] = (),
        weight: Number = 1.0,
        may_merge: bool = False,
    ) -> list[Gradient | None]:
        """Reduces gradients (tensors, `tf.IndexedSlices`, arrays, None) in ``variables``' order.

        With MEAN a worker's gradients count by its ``weight``, float32.
        """
        if (counted := _counted.get()) is not None:
            counted.append(None)
        results = [
            self._as_tensor(g, v) for g, v in itertools.zip_longest(grads, variables[: len(grads)])
        ]
        mine = {i for i, v in enumerate(variables) if state.identity(v) in self.local}
        present = {i: g for i, g in enumerate(results) if g is not None and i not in mine}
        shared, sent = list(present), list(present.values())
        owners = (
            state.held_objects(variables[i] for i in shared)
            if len(variables) == len(results)
            else []
        )
        if owners and self.comm.size > 1:
            rows = [k for k, gradient in enumerate(sent) if isinstance(gradient, tf.IndexedSlices)]
            exchange_plan.tell([variables[i] for i in shared], lambda: ops.buckets(sent), rows)
        bounds = [self.bounds[i] for i in shared] if self.bounds else ()
        reduced = self._reduce_tensors(sent, weight, may_merge, owners, bounds)
        for i, gradient in zip(shared, reduced, strict=True):
            results[i] = times(gradient, self.factor)
        for i in mine:
            results[i] = times(results[i], self.factor * self.local_factor)
        return results

    def _as_tensor(
        self, gradient: GradientLike, variable: FrameworkVariable | None
    ) -> Gradient | None:
        """Converts a gradient, of any form that Keras takes, to a tensor or `tf.IndexedSlices`."""
        # Keras takes arrays and lists too, and rows that do not say of how many.
        if isinstance(gradient, tf.IndexedSlices):
            rows = _complete(gradient, variable)
            return tf.convert_to_tensor(rows) if self.sparse_as_dense else rows
        if gradient is None or tf.is_tensor(gradient):
            return cast("tf.Tensor | None", gradient)
        tensor = tf.convert_to_tensor(gradient)
        return tensor if variable is None else tf.cast(tensor, cast("str", variable.dtype))

    def _reduce_tensors(
        self,
        grads: list[Gradient],
        weight: Number,
        may_merge: bool,
        variables: list[FrameworkVariable],
        bounds: Bounds,
    ) -> list[Gradient]:
        if self.comm.size == 1 or not grads:
            return grads
        if self.op is ReduceOp.ADASUM:
            return [ops.allreduce(self.comm, tf.convert_to_tensor(g), self.op) for g in grads]
        sent, contexts = self._compress(grads)
        # A loop without a strategy may compute whole batches on each worker.
        may_be_whole = self.op is ReduceOp.MEAN and isinstance(weight, float)
        share = tf.cast(weight, tf.float32)
        mean = ops.weighted_mean(
            self.comm, sent, share, may_merge, self.lend, variables, bounds, may_be_whole
        )
        if self.op is ReduceOp.SUM:
            mean = [times(g, self.comm.size) for g in mean]
        return self._decompress(mean, contexts)

    def _compress(self, grads: list[Gradient]) -> tuple[list[Gradient], list[Any]]:
        if self.compression is None:
            return grads, []
        # Rows travel as they are: a compression knows dense tensors alone.
        pairs = [
            (g, None) if isinstance(g, tf.IndexedSlices) else self.compression.compress(g)
            for g in grads
        ]
        return [sent for sent, _ in pairs], [context for _, context in pairs]

    def _decompress(self, grads: list[Gradient], contexts: list[Any]) -> list[Gradient]:
        if self.compression is None:
            return grads
        pairs = zip(grads, contexts, strict=True)
        return [
            g if isinstance(g, tf.IndexedSlices) else self.compression.decompress(g, c)
            for g, c in pairs
        ]


def _complete(rows: tf.IndexedSlices, variable: FrameworkVariable | None) -> tf.IndexedSlices:
    """Returns the rows as tensors, with the shape of the variable where they do not say it."""
    shape = (
        rows.dense_shape
        if variable is None or rows.dense_shape is not None
        else tf.constant(cast("tuple[int, ...]", variable.shape))
    )
    return tf.IndexedSlices(
        tf.convert_to_tensor(rows.values), tf.convert_to_tensor(rows.indices), shape
    )


@overload
def times(gradient: Gradient, factor: Number) -> Gradient: ...
@overload
def times(gradient: Gradient | None, factor: Number) -> Gradient | None: ...
def times(gradient: Gradient | None, factor: Number) -> Gradient | None:
    """Multiplies a gradient (a tensor, `tf.IndexedSlices` or None) by a number."""
    # Most gradients are multiplied by 1: no operation is made for that.
    if gradient is None or (isinstance(factor, float) and factor == 1.0):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor
