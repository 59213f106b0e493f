"""The index arithmetic and refusals that every engine shares."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.comm.communicator import (
    ReduceOp,
    check_reducible,
    contiguous,
    is_half,
    scaled_copy,
    share_of,
    signature,
)
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.errors import ExchangeError, OutOfStepError


@given(st.integers(0, 10**15), st.integers(1, 300))
def test_shares_partition_any_total_in_rank_order(total: int, size: int) -> None:
    shares = [share_of(total, rank, size) for rank in range(size)]
    assert [start for start, _ in shares] == [0, *(stop for _, stop in shares[:-1])]
    assert shares[-1][1] == total


@given(st.integers(0, 10**15), st.integers(1, 300))
def test_shares_are_equal_within_one(total: int, size: int) -> None:
    counts = [stop - start for start, stop in (share_of(total, rank, size) for rank in range(size))]
    assert min(counts) >= 0
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("array", "rows", "text"),
    [
        (np.zeros((2, 3), np.float32), True, "float32 (2, 3)"),
        (np.zeros((2, 3), np.float32), False, "float32 (any, 3)"),
        (np.zeros(5, ml_dtypes.bfloat16), True, "bfloat16 (5)"),
        (np.int64(1), True, "int64 ()"),
    ],
)
def test_signatures_tell_dtypes_and_shapes_apart(array: Any, rows: bool, text: str) -> None:
    assert signature(array, rows) == text


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.complex64, np.dtype("U3"), np.object_, ml_dtypes.float8_e4m3]
)
def test_what_has_no_arithmetic_is_refused(dtype: Any) -> None:
    with pytest.raises(ExchangeError, match="can't be reduced: cast them"):
        check_reducible(np.dtype(dtype), ReduceOp.SUM)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64])
def test_integers_have_sums_but_no_means(dtype: Any) -> None:
    check_reducible(np.dtype(dtype), ReduceOp.SUM)
    with pytest.raises(ExchangeError, match=r"cast to a float first, or use ReduceOp\.SUM"):
        check_reducible(np.dtype(dtype), ReduceOp.MEAN)


@pytest.mark.parametrize(
    ("dtype", "half"),
    [
        (np.float16, True),
        (ml_dtypes.bfloat16, True),
        (np.float32, False),
        (np.int16, False),
        (np.uint16, False),
    ],
)
def test_sixteen_bit_floats_are_halves(dtype: Any, half: bool) -> None:
    assert is_half(np.dtype(dtype)) is half


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_a_share_of_nothing_hides_nan(dtype: Any) -> None:
    target = np.ones(3, dtype)
    scaled_copy(np.full(3, np.nan, dtype), 0.0, target)
    np.testing.assert_array_equal(target, np.zeros(3, dtype))


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_shares_scale_into_the_target_only(share: float) -> None:
    source, target = np.array([4.0, 8.0], np.float32), np.zeros(2, np.float32)
    scaled_copy(source, share, target)
    np.testing.assert_array_equal(target, source * share)
    np.testing.assert_array_equal(source, [4.0, 8.0])


def test_contiguous_keeps_scalars_and_orders_the_rest() -> None:
    assert contiguous(3.0).shape == ()
    transposed = np.arange(6).reshape(2, 3).T
    assert contiguous(transposed).flags.c_contiguous
    np.testing.assert_array_equal(contiguous(transposed), transposed)


@pytest.mark.parametrize(
    ("rows", "splits", "message"),
    [
        (3, None, "give `splits`"),
        (4, [4], "2 counts that add up to 4"),
        (4, [1, 2], "Received: .1, 2"),
        (4, [5, -1], "counts"),
    ],
)
def test_rows_that_can_not_be_dealt_out_are_refused(
    rows: int, splits: list[int] | None, message: str
) -> None:
    with pytest.raises(ExchangeError, match=message):
        InProcessCommunicator(0, 2).alltoall(np.zeros(rows), splits)


def test_scalars_have_no_rows() -> None:
    with pytest.raises(ExchangeError, match="sends rows"):
        InProcessCommunicator().alltoall(np.float32(1))
    with pytest.raises(ExchangeError, match="first axis"):
        InProcessCommunicator().reducescatter(np.float32(1))


@pytest.mark.parametrize("call", ["broadcast_object", "allgather_object"])
def test_an_object_that_can_not_travel_is_told_to_everyone(together: Any, call: str) -> None:
    def play(comm: InProcessCommunicator) -> str:
        with pytest.raises((ExchangeError, OutOfStepError)) as caught:
            getattr(comm, call)(1 if comm.rank else object())
        return str(caught.value)

    for text in together(2, play):
        assert "rank 0: an object that can't be sent" in text
