"""The shipped fake: what the contract suite does not ask of every engine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from syrtos.comm.communicator import ReduceOp
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.errors import ExchangeError, StalledError


def test_the_world_numbers_its_workers() -> None:
    assert [(comm.rank, comm.size) for comm in InProcessCommunicator.world(3)] == [
        (0, 3),
        (1, 3),
        (2, 3),
    ]


def test_a_worker_that_does_not_come_is_an_error_for_the_others() -> None:
    first, _absent = InProcessCommunicator.world(2, timeout=0.05)
    with pytest.raises(StalledError, match="rank 0 waited in `barrier`"):
        first.barrier()


def test_workers_never_share_memory(together: Any) -> None:
    shared = np.zeros(3)

    def play(comm: InProcessCommunicator) -> Any:
        got = comm.broadcast(shared if comm.rank == 0 else np.ones(3))
        got += comm.rank
        return got

    np.testing.assert_array_equal(together(3, play), [[0] * 3, [1] * 3, [2] * 3])
    assert not shared.any()


def test_halves_are_summed_wide_and_rounded_once(together: Any) -> None:
    """2048 + 1 is 2048 in float16: summed narrowly, the ones would be lost."""
    ones_last = (
        np.array([2048.0], np.float16),
        np.array([1.0], np.float16),
        np.array([1.0], np.float16),
    )
    for total in together(3, lambda comm: comm.allreduce(ones_last[comm.rank])):
        assert total.dtype == np.float16
        assert total == 2050


@pytest.mark.filterwarnings("error")
def test_a_sum_beyond_the_range_of_halves_is_infinite(together: Any) -> None:
    """The loss scale of mixed precision looks for it: it is nothing to warn of."""
    large = np.array([60000.0], np.float16)
    for total in together(2, lambda comm: comm.allreduce(large)):
        assert np.isinf(total)


class _Counting(InProcessCommunicator):
    """Counts the bytes that leave for other workers."""

    sent = 0

    def _alltoall(self, array: Any, sent: Any, received: Any) -> Any:
        self.sent += array.nbytes - sent[self.rank] * array.itemsize
        return super()._alltoall(array, sent, received)

    def _allgather(self, array: Any, rows: Any) -> Any:
        self.sent += array.nbytes * (self.size - 1)
        return super()._allgather(array, rows)

    def _reduce(self, parts: Any, op: Any, shares: Any, lend: bool = False) -> Any:
        raise AssertionError("16-bit floats were widened before they were sent")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_travel_in_two_bytes(together: Any, dtype: Any) -> None:
    """As many as a sum of 16-bit numbers needs: ``2 (N - 1) / N`` times the array."""

    def play(comm: InProcessCommunicator) -> tuple[int, Any, Any]:
        mine = _Counting(comm.rank, comm.size, comm._board)
        mean = mine.allreduce(np.full(300, 3 * comm.rank, dtype), ReduceOp.MEAN)
        (weighted,), _ = mine.weighted_sum(
            [np.full(300, comm.rank or np.nan, dtype)], weight=float(comm.rank)
        )
        return mine.sent, mean, weighted

    for sent, mean, weighted in together(3, play):
        assert sent == 2 * (2 * 300 * 2 * 2 // 3)
        np.testing.assert_array_equal(mean, np.full(300, 3, dtype))
        np.testing.assert_array_equal(
            weighted, np.full(300, 5 / 3, dtype)
        )  # rank 0 counts for nothing


def test_groups_do_not_wait_for_each_other(together: Any) -> None:
    def play(comm: InProcessCommunicator) -> float:
        group = comm.split(int(comm.rank == 2))
        return sum(float(group.allreduce(comm.rank)) for _ in range(1 + 2 * (comm.rank == 2)))

    assert together(3, play) == [1.0, 1.0, 6.0]


def test_a_world_of_one_needs_no_threads() -> None:
    alone = InProcessCommunicator()
    assert alone.agree("anything", 3.0) == [3.0]
    assert alone.split(5).size == 1
    sums, total = alone.weighted_sum([np.array([2.0, 4.0])], 8.0)
    assert total == 8.0
    np.testing.assert_array_equal(sums[0], [2.0, 4.0])


def test_a_root_outside_the_group_is_refused() -> None:
    with pytest.raises(ExchangeError, match=r"0 to 0\. Received: 1"):
        InProcessCommunicator().broadcast_object("x", root=1)
