"""What one worker checks of its communicator: the same for every engine, by arithmetic that needs no engine."""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from syrtos.comm import joining
from syrtos.comm.communicator import Communicator, ReduceOp, share_of
from syrtos.comm.sparse import weighted_rows
from syrtos.errors import ConfigurationError, ExchangeError, OutOfStepError, SharedMemoryError

DTYPES: list[Any] = [
    np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64,
]  # fmt: skip
SIZES = [0, 1, 7, 1000, 70_001]


def values(rank: int, size: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Small integers, exact in every dtype and in every order of addition."""
    return ((np.arange(size) + rank) % 3 + 1).astype(dtype)


def check_all(comm: Communicator) -> None:
    """Every check, in an order that is the same on all workers."""
    for check in CHECKS:
        check(comm)
        comm.barrier()


def reduces(comm: Communicator) -> None:
    expected = {
        ReduceOp.SUM: np.add, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum, ReduceOp.PRODUCT: np.multiply,
    }  # fmt: skip
    for dtype in DTYPES:
        for size in SIZES:
            mine = values(comm.rank, size, dtype)
            for op, ufunc in expected.items():
                if op is ReduceOp.PRODUCT and comm.size > 4:
                    continue  # 3 ** 8 does not fit into int8
                want = values(0, size, dtype)
                for rank in range(1, comm.size):
                    want = ufunc(want, values(rank, size, dtype))
                got = comm.allreduce(mine, op)
                assert got.dtype == mine.dtype
                np.testing.assert_array_equal(got, want, err_msg=f"{dtype} {size} {op}")
            np.testing.assert_array_equal(
                mine, values(comm.rank, size, dtype), err_msg="the input was changed"
            )


def reduces_means(comm: Communicator) -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        got = comm.allreduce(np.full(5, comm.rank + 1, dtype), ReduceOp.MEAN)
        np.testing.assert_allclose(got.astype(np.float64), (comm.size + 1) / 2, rtol=1e-2)
        assert got.dtype == dtype
    with pytest.raises(ExchangeError, match="cast to a float"):
        comm.allreduce(np.ones(3, np.int32), ReduceOp.MEAN)


def adds_adaptively(comm: Communicator) -> None:
    """Equal gradients count once, orthogonal ones add up (arXiv:2006.02924, figure 2)."""
    equal = np.arange(1, 6, dtype=np.float32)
    np.testing.assert_allclose(comm.allreduce(equal, ReduceOp.ADASUM), equal, rtol=1e-6)
    alone = np.eye(comm.size, dtype=np.float64)[comm.rank]
    np.testing.assert_allclose(comm.allreduce(alone, ReduceOp.ADASUM), np.ones(comm.size))
    with pytest.raises(ExchangeError, match="cast to a float"):
        comm.allreduce(np.ones(3, np.int32), ReduceOp.ADASUM)


def goes_on_with_those_who_have_data(comm: Communicator) -> None:
    """Rank r has r + 1 batches."""
    size, ones = comm.size, np.ones((2, 3), ml_dtypes.bfloat16)
    for step in range(comm.rank + 1):
        left = size - step
        assert (comm.allreduce(ones) == left).all()
        np.testing.assert_allclose(comm.allreduce(np.ones(9), ReduceOp.MEAN), left / size)
        sums, total = comm.weighted_sum([np.ones(4, np.float32), np.ones(70_000, np.float32)], 1.0)
        assert total == size
        assert all(np.allclose(part, left / size) for part in sums)
        assert len(comm.allgather(np.ones((2, 2), np.float16))) == 2 * left
        assert (comm.broadcast(np.full(3, comm.rank), size - 1) == size - 1).all()
        comm.barrier()
    assert joining.join(comm) == size - 1
    if size == 1:
        return
    with pytest.raises(ExchangeError, match="have joined"):
        joining.join(comm) if comm.rank else comm.allgather_object("nobody can follow")


def keeps_shapes(comm: Communicator) -> None:
    assert comm.allreduce(np.float32(comm.rank)).shape == ()
    assert comm.allreduce(np.ones((2, 3, 4), np.float32)).shape == (2, 3, 4)
    transposed = np.arange(12, dtype=np.float64).reshape(3, 4).T
    np.testing.assert_array_equal(comm.allreduce(transposed), transposed * comm.size)
    assert comm.allreduce(np.zeros((0, 3), np.float32)).shape == (0, 3)


def reduces_alike_twice(comm: Communicator) -> None:
    """Deterministic order: bitwise equal in two runs and on all workers."""
    mine = np.random.default_rng(comm.rank).normal(size=100_003).astype(np.float32)
    first, second = comm.allreduce(mine), comm.allreduce(mine)
    assert first.tobytes() == second.tobytes()
    everyone = comm.allgather(first[None, :64])
    assert (everyone == everyone[0]).all()


def weighs(comm: Communicator) -> None:
    parts = [np.full(3, comm.rank + 1, np.float32), np.full(50_000, comm.rank + 1, np.float32)]
    sums, total = comm.weighted_sum(parts, float(comm.rank + 1))
    assert total == sum(range(1, comm.size + 1))
    want = sum(r * r for r in range(1, comm.size + 1)) / total
    for part, got in zip(parts, sums, strict=True):
        assert got.shape == part.shape
        np.testing.assert_allclose(got, want, rtol=1e-6)


def ignores_workers_without_weight(comm: Communicator) -> None:
    last = comm.rank == comm.size - 1
    part = np.full(20_000, np.nan if last and comm.size > 1 else 2.0, np.float32)
    sums, _ = comm.weighted_sum([part], 0.0 if last and comm.size > 1 else 3.0)
    np.testing.assert_allclose(sums[0], 2.0, rtol=1e-6)
    sums, total = comm.weighted_sum([np.full(20_000, np.nan, np.float32)], 0.0)
    assert total == 0.0
    assert not sums[0].any()


def lent_sum(comm: Communicator, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The sum of all workers' arrays, of small integers: as a mean, which is what is lent."""
    return comm.weighted_sum([array * np.float32(comm.size)], 1.0, lend=True)[0][0]


def lends(comm: Communicator) -> None:
    """What a worker keeps of lent results stays as it was, for however long, and for another time on each worker."""
    common, own = np.random.default_rng(7), np.random.default_rng(100 + comm.rank)
    kept: list[tuple[int, np.ndarray[Any, Any], float]] = []
    for step in range(60):
        sizes = common.choice([100, 20_000, 30_000, 70_000], size=int(common.integers(1, 4)))
        weights = common.integers(0, 3, size=comm.size).astype(float)
        parts = [np.full(int(size), step + comm.rank, np.float32) for size in sizes]
        sums, total = comm.weighted_sum(parts, weights[comm.rank], lend=True)
        want = float(weights @ (step + np.arange(comm.size))) / total if total else 0.0
        for part in sums:
            np.testing.assert_allclose(part, want, rtol=1e-5)
            if own.random() < 0.4:
                until = step + int(own.integers(1, 25))
                kept.append((until, part[:: int(own.integers(1, 3))], float(part[0])))
        kept = [one for one in kept if one[0] > step]
        for _, part, value in kept:
            assert (part == value).all(), "a result that was kept has changed"
    total = lent_sum(comm, np.full(50_000, comm.rank, np.float32))
    assert (total == sum(range(comm.size))).all()


def goes_on_with_lent_results(comm: Communicator) -> None:
    """After others have joined, too."""
    for step in range(comm.rank + 1):
        sums, _ = comm.weighted_sum([np.ones(70_000, np.float32)], 1.0, lend=True)
        np.testing.assert_allclose(sums[0], (comm.size - step) / comm.size)
        assert (lent_sum(comm, np.ones(70_000, np.float32)) == comm.size - step).all()
    joining.join(comm)


def sums_rows(comm: Communicator) -> None:
    """Sent as rows or as the table, the sum is the same."""
    for table_rows in (10_000, 5):
        indices = np.array([comm.rank % 5, 3], np.int64)
        rows = np.full((2, 4), comm.rank + 1, np.float32)
        got, at = weighted_rows(comm, rows, indices, table_rows, 1.0)
        table = np.zeros((table_rows, 4), np.float32)
        np.add.at(table, at, got)
        want = np.zeros((table_rows, 4), np.float32)
        for rank in range(comm.size):
            np.add.at(want, [rank % 5, 3], np.full((2, 4), (rank + 1) / comm.size, np.float32))
        np.testing.assert_allclose(table, want, rtol=1e-5)


def gathers(comm: Communicator) -> None:
    for dtype in DTYPES:
        got = comm.allgather(np.full((comm.rank, 2), comm.rank, dtype))
        want = np.concatenate([np.full((r, 2), r, dtype) for r in range(comm.size)])
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(comm.allgather(np.int32(comm.rank)), np.arange(comm.size))
    assert comm.allgather(np.zeros((0, 5))).shape == (0, 5)


def broadcasts(comm: Communicator) -> None:
    for root in {0, comm.size - 1}:
        for dtype in DTYPES:
            mine = np.full((3, 2), comm.rank + 1, dtype)
            np.testing.assert_array_equal(
                comm.broadcast(mine, root), np.full((3, 2), root + 1, dtype)
            )
            assert (mine == dtype(comm.rank + 1)).all()
    assert comm.broadcast(np.zeros(0)).size == 0
    with pytest.raises(ExchangeError, match="rank of this group"):
        comm.broadcast(np.zeros(1), comm.size)


def scatters(comm: Communicator) -> None:
    rows = comm.size * 2 + 1
    got = comm.reducescatter(np.arange(rows, dtype=np.float32))
    start, stop = share_of(rows, comm.rank, comm.size)
    np.testing.assert_array_equal(got, np.arange(start, stop) * comm.size)


def gathers_parts(comm: Communicator) -> None:
    """Even parts, parts of some workers only, and more than fits into one piece of shared memory."""
    for dtype in DTYPES:
        sizes = [7, 3, 150_000, 0]
        bounds = [[share_of(size, rank, comm.size) for rank in range(comm.size)] for size in sizes]
        bounds[1] = [(0, 3 if rank == comm.size - 1 else 0) for rank in range(comm.size)]
        wholes = [np.full(size, 99).astype(dtype) for size in sizes]
        for whole, ranges in zip(wholes, bounds, strict=True):
            whole[slice(*ranges[comm.rank])] = comm.rank + 1
        comm.gather_parts(wholes, bounds)
        for whole, ranges in zip(wholes, bounds, strict=True):
            for rank, (start, stop) in enumerate(ranges):
                assert (whole[start:stop] == dtype(rank + 1)).all()


def sums_parts(comm: Communicator) -> None:
    """Of workers that count unequally, one of them not at all; parts as of `gathers_parts`."""
    for dtype in (np.float32, np.float64, np.float16):
        sizes = [7, 3, 1_500_000 if dtype is np.float32 else 9000, 0]
        bounds = [[share_of(size, rank, comm.size) for rank in range(comm.size)] for size in sizes]
        bounds[1] = [(0, 3 if rank == comm.size - 1 else 0) for rank in range(comm.size)]
        weight = float(comm.rank) if comm.size > 1 else 1.0
        wholes = [np.arange(size).astype(dtype) % 5 * (comm.rank + 1) for size in sizes]
        if comm.size > 1 and comm.rank == 0:
            wholes = [np.full_like(whole, np.nan) for whole in wholes]
        expected, total = comm.weighted_sum([whole.copy() for whole in wholes], weight)
        assert total > 0
        found = comm.weighted_part_sum(wholes, bounds, weight)
        for part, whole, ranges in zip(found, expected, bounds, strict=True):
            np.testing.assert_allclose(
                part, whole[slice(*ranges[comm.rank])], rtol=2e-3 if dtype is np.float16 else 1e-6
            )


def sends_to_all(comm: Communicator) -> None:
    got, received = comm.alltoall(np.repeat(np.arange(comm.size), 2))
    np.testing.assert_array_equal(got, np.full(2 * comm.size, comm.rank))
    assert received == [2] * comm.size
    splits = [comm.rank] * comm.size
    got, received = comm.alltoall(
        np.full((comm.rank * comm.size, 3), comm.rank, np.float32), splits
    )
    assert received == list(range(comm.size))
    assert got.shape == (sum(received), 3)


def moves_objects(comm: Communicator) -> None:
    value = {"rank": comm.rank, "text": "é" * comm.rank, "list": [1.5, None, True]}
    assert comm.broadcast_object(value, comm.size - 1)["rank"] == comm.size - 1
    assert [v["text"] for v in comm.allgather_object(value)] == ["é" * r for r in range(comm.size)]
    with pytest.raises(ExchangeError, match="never pickled"):
        comm.allgather_object(object())


def splits(comm: Communicator) -> None:
    group = comm.split(comm.rank % 2)
    members = list(range(comm.rank % 2, comm.size, 2))
    assert (group.rank, group.size) == (members.index(comm.rank), len(members))
    total = group.allreduce(np.full(30_000, comm.rank, np.float32))
    np.testing.assert_array_equal(total, np.full(30_000, sum(members)))
    group.close()


def explains_mistakes(comm: Communicator) -> None:
    if comm.size == 1:
        return
    with pytest.raises(
        OutOfStepError, match=r"rank 0: allreduce sum float32 \(4\)[\s\S]*rank 1: barrier"
    ):
        comm.allreduce(np.zeros(4, np.float32)) if comm.rank == 0 else comm.barrier()
    with pytest.raises(OutOfStepError, match=r"\(2, 2\)"):
        comm.allreduce(np.zeros((2, 2 + (comm.rank == 1)), np.float32))
    with pytest.raises(OutOfStepError, match="int32"):
        comm.broadcast(np.zeros(3, np.int32 if comm.rank else np.int64))
    assert comm.allreduce(np.float32(1)) == comm.size  # and the group still works


def passes_by(comm: Communicator) -> None:
    """A worker that passes by waits for the others, and does not get them out of step."""
    assert not comm.pass_by("all")
    before, last = comm.meetings, comm.rank == comm.size - 1 and comm.size > 1
    if last:
        assert not comm.pass_by("the last")
    assert comm.allreduce(np.ones(3)).tolist() == [comm.size] * 3
    assert comm.meetings == before + (comm.size > 1)
    if comm.size == 1:
        return
    assert comm.pass_by(f"each another {comm.rank}")
    assert not comm.pass_by(f"each another {comm.rank}", again=True)
    if last:
        comm.pass_by("before a mistake of the others")
    with pytest.raises(
        OutOfStepError, match=rf"rank 0: barrier[\s\S]*rank {comm.size - 1}: allreduce"
    ):
        comm.allreduce(np.ones(2)) if last else comm.barrier()


def leaves_early(comm: Communicator) -> None:
    """A worker that no longer waits goes on, passes by again, and is in step at its next operation."""
    if comm.rank == 0 and comm.size > 1:
        for call in ("leaves", "leaves again"):
            comm.pass_by(call, until=lambda: True)
    assert comm.allreduce(np.ones(3)).tolist() == [comm.size] * 3


def passes_by_those_who_have_joined(comm: Communicator) -> None:
    last = comm.size - 1
    if comm.rank < last:
        assert joining.join(comm) == last
        return
    for _ in range(2):
        comm.pass_by("a file")
        assert comm.allreduce(np.ones(3)).tolist() == [1.0] * 3
    comm.pass_by("another file")
    assert joining.join(comm) == last


def refuses_what_has_no_sum(comm: Communicator) -> None:
    for array in (np.array(["a"]), np.array([True]), np.array([1j])):
        with pytest.raises(ExchangeError, match="can't be reduced"):
            comm.allreduce(array)


CHECKS = [
    reduces, reduces_means, adds_adaptively, goes_on_with_those_who_have_data, keeps_shapes, reduces_alike_twice, weighs, lends,
    goes_on_with_lent_results, ignores_workers_without_weight, sums_rows, gathers, broadcasts, scatters, gathers_parts, sums_parts, sends_to_all,
    moves_objects, splits, explains_mistakes, refuses_what_has_no_sum, passes_by, leaves_early,
    passes_by_those_who_have_joined,
]  # fmt: skip


# -- one function for each engine, called in real workers by `run_world` -----------------------------


def on_mpi() -> str:
    from mpi4py import MPI

    from syrtos.comm.mpi import MPICommunicator

    check_all(MPICommunicator(MPI.COMM_WORLD.Dup()))
    return "ok"


def in_a_forked_process() -> str:
    """A child of a worker is refused, and the workers go on."""
    from mpi4py import MPI

    from syrtos.comm.mpi import MPICommunicator

    comm = MPICommunicator(MPI.COMM_WORLD.Dup())
    comm.agree("before")
    if not (child := os.fork()):
        try:
            comm.agree("in a child")
        except ConfigurationError as error:
            os._exit(7 if f"forked this process from rank {comm.rank}" in str(error) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    comm.agree("after")
    return "ok"


def on_shared_memory() -> str:
    from mpi4py import MPI

    from syrtos.comm.shared_memory import SharedMemoryCommunicator

    comm = SharedMemoryCommunicator(MPI.COMM_WORLD.Dup())
    check_all(comm)
    comm.close()
    return "ok"


def with_little_memory() -> str:
    """No window can be made: results are copied, and may be written to."""
    from mpi4py import MPI

    from syrtos.comm import windows
    from syrtos.comm.shared_memory import SharedMemoryCommunicator

    windows._BUDGET = 0.0
    comm = SharedMemoryCommunicator(MPI.COMM_WORLD.Dup())
    lends(comm)
    assert lent_sum(comm, np.ones(50_000, np.float32)).flags.writeable
    comm.close()
    return "ok"


def with_windows() -> str:
    """Results are lent, and the memory of one is used again when it ends; what is kept outlives the workers' communicator."""
    from mpi4py import MPI

    from syrtos.comm import segments
    from syrtos.comm.shared_memory import SharedMemoryCommunicator

    comm = SharedMemoryCommunicator(MPI.COMM_WORLD.Dup())
    places, total = set(), np.zeros(0, np.float32)
    for _ in range(20):
        total = lent_sum(comm, np.ones(50_000, np.float32))
        assert not total.flags.writeable
        places.add(total.ctypes.data)
    assert len(places) == 2, "one that is assigned to, and the next"
    assert comm._windows is not None
    assert comm._windows.nbytes < 1 << 20
    comm.close()
    assert (total == comm.size).all()
    segments._create_unnamed = segments._create_named  # what workers in containers of their own use
    memory = np.frombuffer(segments.create(MPI.COMM_WORLD, 1 << 16), np.uint8)
    memory[MPI.COMM_WORLD.Get_rank()] = 1
    MPI.COMM_WORLD.Barrier()
    assert memory.sum() == MPI.COMM_WORLD.Get_size()
    with pytest.raises(SharedMemoryError, match="shm-size"):
        segments.create(MPI.COMM_WORLD, 1 << 50)
    return "ok"


def on_hierarchy(hosts: list[int]) -> str:
    """``hosts[r]`` stands for the host of rank ``r``: groups that share memory are smaller than this machine."""
    from mpi4py import MPI

    from syrtos.comm.hierarchical import HierarchicalCommunicator

    world = MPI.COMM_WORLD.Dup()
    comm = HierarchicalCommunicator(world, world.Split(hosts[world.Get_rank()], world.Get_rank()))
    check_all(comm)
    comm.close()
    return "ok"


def over_two_gigabytes() -> str:
    """More bytes than a 32-bit count can say, in one call."""
    from syrtos.comm import world

    comm = world.current().comm
    array = np.zeros((1 << 31) + 64, np.int8)
    array[-1] = comm.rank + 1
    gathered = comm.broadcast(array, 1)
    assert gathered[-1] == 2
    reduced = comm.allreduce(array)
    assert reduced[-1] == 3
    assert reduced.nbytes > 1 << 31
    return "ok"
