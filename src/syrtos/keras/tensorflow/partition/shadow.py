"""Compares operations on rows with the same on whole tensors (`syrtos verify --operations`).

Each operation of a step that is emitted for a worker's rows is emitted once more, with its inputs
made whole. An operation is compared with itself on the same inputs, so an error shows where it is
made, and not in what follows from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from syrtos.comm.arrays import Array, ReduceOp
from syrtos.comm.communicator import Communicator
from syrtos.keras.split import comparison
from syrtos.keras.split.comparison import Row
from syrtos.keras.tensorflow import tf_internals_emission
from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.partitioner import OF_FUNCTIONS, Partitioner
from syrtos.keras.tensorflow.partition.report import Report, place_of
from syrtos.keras.tensorflow.partition.values import Value

_NOT_COMPARED = (tf.resource, tf.variant, tf.string)


@dataclasses.dataclass
class _Compared:
    """A comparison of one output of an operation, which is made once the step runs.

    Attributes:
        name: the operation, and the script's line that it comes from.
        whole, split: the norms of the output of the operation on whole tensors, and on rows.
        difference: the relative difference of the two.
    """

    name: str
    whole: float = 0.0
    split: float = 0.0
    difference: float = 0.0


class ComparedOperations:
    """The operations of a step that were compared, in the order in which they were emitted."""

    def __init__(self) -> None:
        self.found: list[_Compared] = []

    def begin(self, operation: tf.Operation) -> _Compared:
        """Returns the place for an output of an operation."""
        self.found.append(_Compared(place_of(operation)))
        return self.found[-1]

    def differing(self, comm: Communicator, bound: float) -> list[Row]:
        """Returns rows of `syrtos verify`'s table for operations that differ by over ``bound``.

        They are in the order in which they were emitted. All workers call this together.
        """
        mine = np.asarray([each.difference for each in self.found], np.float64)
        worst = comm.allreduce(np.nan_to_num(mine, nan=np.inf), ReduceOp.MAX) if len(mine) else mine
        return [
            Row("operation", each.name, each.whole, each.split, float(difference))
            for each, difference in zip(self.found, worst, strict=True)
            if difference > bound
        ]


class ShadowPartitioner(Partitioner):
    """Emits operations as `Partitioner` does, and compares each with itself on whole tensors.

    Operations in the bodies of loops, those that draw random numbers or have another effect, and
    tensors of resources, variants and strings are not compared.
    """

    compared: ComparedOperations

    def child(self, report: Report | None = None) -> Partitioner:
        """Returns a partitioner for a branch, which compares too, or for a loop, which does not."""
        if report is not None:
            return super().child(report)
        made = self.child_of(ShadowPartitioner)
        made.compared = self.compared
        return made

    def _emit(self, op: tf.Operation, values: list[Value]) -> list[Value]:
        given = [_copy(value) for value in values]
        results = super()._emit(op, values)
        if self.defers_sums or not _is_comparable(op) or all(v.is_replicated for v in given):
            return results
        made = self.made
        # of its own, so that neither the values nor the report of the step change
        apart = Emitter(self.share, self.exchanges, Report())
        wholes = tf_internals_emission.emit(op, [apart.whole(value) for value in given]).outputs
        for whole, result in zip(wholes, results, strict=True):
            if whole.dtype not in _NOT_COMPARED:
                self._compare(self.compared.begin(op), whole, apart.whole(_copy(result)))
        self.made = made
        return results

    def _compare(self, place: _Compared, whole: tf.Tensor, split: tf.Tensor) -> None:
        def compare(one: Array, other: Array) -> Array:
            place.whole, place.split = comparison.size_of(one), comparison.size_of(other)
            place.difference = comparison.distance(one, other)
            return np.zeros((), np.int32)

        given: Sequence[tf.Tensor] = [
            tf.cast(tensor, tf.float32) if tensor.dtype in (tf.bfloat16, tf.bool) else tensor
            for tensor in (whole, split)
        ]
        tf.numpy_function(compare, given, tf.int32, stateful=True)


def _is_comparable(operation: tf.Operation) -> bool:
    tensors = [*operation.inputs, *operation.outputs]
    return (
        operation.type not in OF_FUNCTIONS
        and not operation.op_def.is_stateful
        and not any(tensor.dtype in (tf.resource, tf.variant) for tensor in tensors)
    )


def _copy(value: Value) -> Value:
    """Returns a value whose tensor another one's reduction leaves as it is."""
    return dataclasses.replace(value, gathered=None, gradient_of=None, is_only_read=False)
