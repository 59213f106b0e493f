"""Exchanges between workers of several hosts.

They use shared memory inside each host, and between hosts one network lane for each local rank. The
lanes run at once, so every worker's core and every link carries its part; there is no leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpi4py import MPI

from syrtos.comm.arrays import Array, Bounds, ReduceOp, is_half
from syrtos.comm.communicator import Communicator
from syrtos.comm.mpi import MPICommunicator
from syrtos.comm.shared_memory import SharedMemoryCommunicator
from syrtos.comm.watchdog import Watchdog


class HierarchicalCommunicator(MPICommunicator):
    """A shared-memory group inside the host, composed with MPI between hosts.

    Hosts may hold different numbers of workers: there are as many lanes as the smallest host has
    workers.
    """

    def __init__(self, comm: MPI.Comm, host: MPI.Comm, watchdog: Watchdog | None = None) -> None:
        """Builds the groups; ``host``: the workers of ``comm`` that share this worker's memory."""
        super().__init__(comm, watchdog)
        self.host = SharedMemoryCommunicator(host, self.watchdog)
        self.lanes = comm.allreduce(self.host.size, MPI.MIN)
        carries = self.host.rank < self.lanes
        lane = comm.Split(self.host.rank if carries else MPI.UNDEFINED, comm.Get_rank())
        self.lane = MPICommunicator(lane, self.watchdog) if carries else None
        # For each host its workers, by their ranks here; none where hosts hold different numbers of
        # workers.
        self._hosts: list[list[int]] = []
        if comm.allreduce(self.host.size, MPI.MAX) == self.lanes and self.lane:
            lanes = host.allgather(self.lane.comm.allgather(self.rank))
            self._hosts = [list(ranks) for ranks in zip(*lanes, strict=True)]

    def split(self, color: int) -> MPICommunicator:
        return communicator_over(self.comm.Split(color, self.rank), self.watchdog)

    def close(self) -> None:
        self.host.close()
        if self.lane:
            self.lane.close()
        super().close()

    def _reduce(
        self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float], lend: bool = False
    ) -> list[Array]:
        def carry(lane_slice: Array) -> Callable[[], None]:
            assert self.lane is not None
            return self.lane.start_sum(lane_slice, op)

        return self.host.reduce_through_window(
            parts, op, shares[self.rank], self.lanes, carry, lend
        )

    def _reduce_half(
        self, parts: Sequence[Array], op: ReduceOp, shares: Sequence[float]
    ) -> list[Array]:
        """Reduces in float32 inside the host, and rounds what travels between hosts."""
        # means are scaled on the way into the window
        lane_op = ReduceOp.SUM if op is ReduceOp.MEAN else op

        def carry(lane_slice: Array) -> Callable[[], None]:
            assert self.lane is not None
            rounded = lane_slice.astype(parts[0].dtype)
            lane_slice[...] = self.lane.sum_of_halves(rounded, lane_op, [1.0] * self.lane.size)
            return lambda: None

        def reduce(wide: Sequence[Array], op: ReduceOp, shares: Sequence[float]) -> list[Array]:
            return self.host.reduce_through_window(wide, op, shares[self.rank], self.lanes, carry)

        return self.in_float32(reduce, parts, op, shares)

    def _reduce_to_parts(
        self, wholes: Sequence[Array], bounds: Bounds, shares: Sequence[float]
    ) -> list[Array]:
        """Sums all inside the host, and exchanges parts with the peers on the other hosts.

        The peers are the workers of the same local rank there.
        """
        if not self._hosts or self.lane is None or is_half(wholes[0].dtype):
            return Communicator._reduce_to_parts(self, wholes, bounds, shares)
        sums = self.host.reduce_through_window(
            wholes, ReduceOp.SUM, shares[self.rank], self.host.size, lend=True
        )
        return self.lane.sum_parts(
            sums, self._bounds_of(bounds, [ranks[self.host.rank] for ranks in self._hosts])
        )

    def _gather_parts(self, wholes: Sequence[Array], bounds: Bounds) -> None:
        """Gathers parts from the peers on the other hosts, and then inside the host.

        The peers are the workers of the same local rank there.
        """
        if not self._hosts or self.lane is None:
            super()._gather_parts(wholes, bounds)
            return
        self.lane._gather_parts(
            wholes, self._bounds_of(bounds, [ranks[self.host.rank] for ranks in self._hosts])
        )
        for ranks in self._hosts:
            self.host._gather_parts(wholes, self._bounds_of(bounds, ranks))

    def _bounds_of(self, bounds: Bounds, ranks: Sequence[int]) -> Bounds:
        """Returns the bounds of some workers' parts."""
        return [[ranges[rank] for rank in ranks] for ranges in bounds]


def communicator_over(comm: MPI.Comm, watchdog: Watchdog | None = None) -> MPICommunicator:
    """Returns the fastest engine for the workers of ``comm``, chosen alike by all of them."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    # Each worker has all sizes, so that all choose the same engine.
    sizes = comm.allgather(host.Get_size())
    if sizes[0] == comm.Get_size():
        host.Free()
        return SharedMemoryCommunicator(comm, watchdog)
    if max(sizes) == 1:
        host.Free()
        return MPICommunicator(comm, watchdog)
    return HierarchicalCommunicator(comm, host, watchdog)
