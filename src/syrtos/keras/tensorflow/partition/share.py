"""This worker's rows of the whole batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.comm.arrays import share_of
from syrtos.keras.tensorflow.partition.values import RowCount, RowPlacement, Size

# A number of rows: an int, or an int32 scalar.
Count = int | tf.Tensor


@dataclasses.dataclass(frozen=True)
class Share:
    """The range of rows that this worker has: ``start`` up to, without, ``stop`` of ``total``.

    All three are ints where the size of the batch is static, else int32 scalars.
    """

    start: Any
    stop: Any
    total: Any

    @classmethod
    def of(cls, total: Any, rank: int, size: int) -> Share:
        """Returns the rows of ``rank`` in a world of ``size`` workers."""
        start, stop = share_of(total, rank, size)
        return cls(start, stop, total)

    @property
    def is_static(self) -> bool:
        """True where the number of rows is known while the program is partitioned."""
        return isinstance(self.total, int)

    @property
    def count(self) -> Any:
        """This worker's number of rows."""
        return self.stop - self.start

    def size(self, each: int) -> Size:
        """Returns the whole size of a dimension with ``each`` entries a row."""
        return self.total * each if self.is_static else RowCount(each)

    def each_of(self, size: Size) -> int | None:
        """Returns how many entries a row has in a dimension of ``size``; None: it is not made of rows."""
        if isinstance(size, RowCount):
            return size.each
        # Limits of ranges may be no whole numbers.
        if not isinstance(size, int | np.integer) or not self.is_static or size == 0:
            return None
        return int(size) // self.total if size % self.total == 0 else None

    def tensor_of(self, size: Size, dtype: tf.DType) -> tf.Tensor:
        """Returns a known size as a scalar."""
        assert size is not None
        if isinstance(size, RowCount):
            return tf.cast(self.total * size.each, dtype)
        return tf.constant(size, dtype)

    def bounds(self, rows: RowPlacement) -> tuple[Any, Any]:
        """Returns the first index of this worker's part along the dimension, and its length."""
        return self.start * rows.each, self.count * rows.each
