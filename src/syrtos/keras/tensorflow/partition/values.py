"""Values of a partitioned program: a tensor of this worker, and its placement.

The program is traced on the whole batch. Each of its tensors is *replicated* (every worker has all
of it), has its *rows* on the workers (a worker has a contiguous part along one dimension), or is
*partial* (the reduction of the workers' tensors is the value).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from syrtos.comm.arrays import ReduceOp


@dataclasses.dataclass(frozen=True)
class Replicated:
    """The placement of a tensor that every worker has whole."""


@dataclasses.dataclass(frozen=True)
class RowPlacement:
    """The placement of a tensor whose rows are spread over the workers.

    Attributes:
        dim: the dimension that is spread.
        each: the number of entries along it for each row of the batch.
    """

    dim: int
    each: int = 1


@dataclasses.dataclass(frozen=True)
class Partial:
    """The placement of a tensor that is the reduction of the workers' tensors."""

    op: ReduceOp = ReduceOp.SUM


Placement = Replicated | RowPlacement | Partial
REPLICATED = Replicated()


@dataclasses.dataclass(frozen=True)
class RowCount:
    """The size ``each * n`` of a dimension, where ``n`` is the number of rows of the whole batch."""

    each: int


# A size that is known while the program is partitioned; None: it is not.
Size = int | RowCount | None


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor of a partitioned program.

    Attributes:
        tensor: this worker's tensor.
        placement: the part of the value that it is.
        known: for a scalar or vector of integers that is made of shapes: its entries, each an int,
            a `RowCount`, or None where it is not known.
        dims: sizes of the whole value, as far as they are known; None: those of ``tensor`` and of
            the placement.
        gathered: the whole value of rows, once it has been gathered, or from which they were cut.
        is_empty_list: whether it is a list of tensors that has no element yet.
        element_dtype: the dtype of a list's elements.
        element_known: what is ``known`` of each of a list's elements.
        is_only_read: whether all that takes the value computes new memory from it, so that the
            workers may share that of its reduction.
        gradient_of: the variable of which an optimizer takes it as the gradient.
    """

    tensor: tf.Tensor
    placement: Placement = REPLICATED
    known: np.ndarray | None = None
    dims: tuple[Size, ...] | None = None
    gathered: tf.Tensor | None = None
    is_empty_list: bool = False
    element_dtype: tf.DType | None = None
    element_known: np.ndarray | None = None
    is_only_read: bool = False
    gradient_of: object = None

    @property
    def rows(self) -> RowPlacement | None:
        """The placement of rows; None where the value is not spread."""
        return self.placement if isinstance(self.placement, RowPlacement) else None

    @property
    def is_partial(self) -> bool:
        """True where the workers' tensors are to be reduced."""
        return isinstance(self.placement, Partial)

    @property
    def is_replicated(self) -> bool:
        """True where every worker has all of it."""
        return isinstance(self.placement, Replicated)

    @property
    def rank(self) -> int | None:
        """The number of dimensions; None where it is not known."""
        return self.tensor.shape.rank


def same_rows(values: Sequence[Value]) -> RowPlacement | None:
    """Returns the placement that all spread values have; None where they differ, or none is spread."""
    found = {value.rows for value in values if value.rows}
    return found.pop() if len(found) == 1 else None
