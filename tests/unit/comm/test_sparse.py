"""Rows or table: the same sum, and fewer bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.comm.sparse import moves_fewer_as_rows, sum_repeated_rows, weighted_rows
from syrtos.errors import OutOfStepError

INDICES = [np.array([0, 2, 2]), np.array([1])]
WEIGHTS = [3.0, 1.0]


def as_table(values: Any, indices: Any, rows: int) -> Any:
    table = np.zeros((rows, *values.shape[1:]), np.float64)
    np.add.at(table, indices, values)
    return table


def exchange(comm: InProcessCommunicator, rows: int) -> tuple[Any, Any]:
    indices = INDICES[comm.rank]
    values = np.full((len(indices), 2), comm.rank + 1.0, np.float32)
    return weighted_rows(comm, values, indices, rows, WEIGHTS[comm.rank])


def test_many_rows_travel_as_rows_in_rank_order(together: Any) -> None:
    for values, indices in together(2, lambda comm: exchange(comm, 1000)):
        np.testing.assert_array_equal(indices, [0, 2, 2, 1])
        np.testing.assert_allclose(values[:, 0], [0.75, 0.75, 0.75, 0.5])


def test_values_that_may_not_merge_travel_as_rows_always(together: Any) -> None:
    def play(comm: InProcessCommunicator) -> Any:
        indices = INDICES[comm.rank]
        return weighted_rows(
            comm, np.ones((len(indices), 2)), indices, 3, WEIGHTS[comm.rank], may_merge=False
        )

    for values, indices in together(2, play):
        np.testing.assert_array_equal(indices, [0, 2, 2, 1])
        np.testing.assert_allclose(values[:, 0], [0.75, 0.75, 0.75, 0.25])


def test_a_small_table_travels_as_a_table(together: Any) -> None:
    for values, indices in together(2, lambda comm: exchange(comm, 3)):
        rows = as_table(values, indices, 3)
        np.testing.assert_allclose(rows[:, 0], [0.75, 0.5, 1.5])


@pytest.mark.parametrize("rows", [2, 1000])
def test_a_worker_without_weight_adds_nothing(together: Any, rows: int) -> None:
    def play(comm: InProcessCommunicator) -> tuple[Any, Any]:
        idle = comm.rank == 1
        values = np.full((2, 4), np.nan if idle else 5.0, np.float32)
        return weighted_rows(comm, values, np.array([0, 1]), rows, 0.0 if idle else 2.0)

    for values, indices in together(2, play):
        np.testing.assert_array_equal(as_table(values, indices, 2), np.full((2, 4), 5.0))


@pytest.mark.parametrize("rows", [2, 1000])
def test_a_worker_may_have_no_rows(together: Any, rows: int) -> None:
    def play(comm: InProcessCommunicator) -> tuple[Any, Any]:
        count = 1 - comm.rank
        return weighted_rows(
            comm, np.ones((count, 3), np.float32), np.zeros(count, np.int64), rows, float(count)
        )

    for values, indices in together(2, play):
        np.testing.assert_array_equal(as_table(values, indices, 2), [[1, 1, 1], [0, 0, 0]])


def test_different_tables_are_out_of_step(together: Any) -> None:
    with pytest.raises(OutOfStepError, match="of 11"):
        together(
            2,
            lambda comm: weighted_rows(
                comm, np.ones((1, 2)), np.zeros(1, int), 10 + comm.rank, 1.0
            ),
        )


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 512), st.sampled_from([4, 8]))
def test_the_choice_moves_fewer_bytes(
    rows: int, table_rows: int, row_bytes: int, index_bytes: int
) -> None:
    gathered, reduced = rows * (row_bytes + index_bytes), 2 * table_rows * row_bytes
    if gathered != reduced:
        assert moves_fewer_as_rows(rows, table_rows, row_bytes, index_bytes) == (gathered < reduced)


def test_each_row_of_the_table_stands_once() -> None:
    values = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
    summed, indices = sum_repeated_rows(values, np.array([7, 2, 7]))
    assert indices.tolist() == [2, 7]
    assert summed.tolist() == [[3.0, 4.0], [6.0, 8.0]]
    nothing, none = sum_repeated_rows(values[:0], np.array([], np.int64))
    assert nothing.shape == (0, 2)
    assert not len(none)
