"""Arrays that are exchanged, the reductions over them, and how they are divided between workers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from syrtos.errors import ExchangeError

Array = npt.NDArray[Any]
# For each of some arrays and each worker: the first element of its part, and the one after its
# last.
Bounds = Sequence[Sequence[tuple[int, int]]]


class ReduceOp(enum.Enum):
    """The reduction over the values of all workers."""

    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"


UFUNC: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.MEAN: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}


def share_of(total: Any, rank: int, size: int) -> tuple[Any, Any]:
    """Returns the half-open range of ``total`` rows that ``rank`` has.

    The ranges are contiguous, in rank order, with sizes within one. ``total`` is an int, or a
    tensor of one.
    """
    return rank * total // size, (rank + 1) * total // size


def contiguous(array: npt.ArrayLike) -> Array:
    """Returns an array with equal values in C order; a scalar stays a scalar."""
    # Not `np.ascontiguousarray`, which makes an array of one element of a scalar.
    return np.asarray(array, order="C")


def signature(array: Array, rows: bool = True) -> str:
    """Returns dtype and shape as text; without the first dimension if ``rows`` is False."""
    shape = array.shape if rows else ("any", *array.shape[1:])
    return f"{array.dtype.name} ({', '.join(map(str, shape))})"


def check_reducible(dtype: np.dtype[Any], op: ReduceOp) -> None:
    """Refuses dtypes without arithmetic, and means of integers."""
    # The bfloat16 of ml_dtypes has the kind of records (V).
    if dtype.kind not in "iufV" or (dtype.kind == "V" and dtype.name != "bfloat16"):
        raise ExchangeError(
            f"Arrays of dtype {dtype.name} can't be reduced: cast them to a number type first."
        )
    if op in (ReduceOp.MEAN, ReduceOp.ADASUM) and dtype.kind in "iu":
        raise ExchangeError(
            f"The {op.value} of {dtype.name} arrays is no {dtype.name}: cast to a float first, or"
            " use ReduceOp.SUM."
        )


def is_half(dtype: np.dtype[Any]) -> bool:
    """Returns whether sums of this dtype are accumulated in float32."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


def narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    """Returns numbers in a narrower dtype; those beyond its range are infinite."""
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def scaled_copy(source: Array, share: float, target: Array) -> None:
    """Sets ``target = share * source`` without a temporary.

    A share of 0 gives 0 even where the source is NaN.
    """
    if share == 1.0:
        np.copyto(target, source)
    # 0 * NaN would be NaN.
    elif share == 0.0:
        target.fill(0)
    else:
        np.multiply(source, source.dtype.type(share), out=target)
