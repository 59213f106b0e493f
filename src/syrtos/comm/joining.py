"""`join`: a worker without more data follows the others' exchanges until all have joined.

It takes part in them with zeros or no rows. The meaning is Horovod's ``join``: such a worker adds
zeros to sums, and averages are still divided by the number of all workers.
"""

from __future__ import annotations

import re

import numpy as np

from syrtos.comm.arrays import Array, ReduceOp
from syrtos.comm.communicator import Communicator
from syrtos.comm.objects import dtype_of
from syrtos.comm.tags import JOINED, Tags

_CALL = re.compile(
    r"(allreduce (?P<op>\w+)|allgather|broadcast from (?P<root>\d+)) (?P<dtype>\w+)"
    r" \((?P<shape>.*)\)$"
)


def join(comm: Communicator) -> int:
    """Follows the others until every worker has joined.

    Returns:
        The rank that joined last; the highest of them if several did at once.

    Raises:
        ExchangeError: the others call an operation that needs data of every worker.
    """
    followed = 0
    while True:
        tags, values = comm.meet(JOINED, float(followed), "join")
        if not tags.calling:
            return max(rank for rank, waited in enumerate(values) if waited == min(values))
        _follow(comm, comm.hear(tags, "join"), tags, values)
        followed += 1


def _follow(comm: Communicator, call: str, tags: Tags, values: list[float]) -> None:
    """Does this worker's part of ``call``."""
    counts = [0.0 if rank in tags.joined_ranks else value for rank, value in enumerate(values)]
    if call.startswith("exchange "):
        _, dtype, sizes, *lent = call.split(" ")
        zeros = [_zeros(dtype, (int(size),)) for size in sizes.split(",")]
        # As the others count a worker that has joined: see `Communicator.agree`.
        weights = [1.0 if rank in tags.joined_ranks else value for rank, value in enumerate(values)]
        comm.reduce_parts(
            zeros, ReduceOp.SUM, [weight / sum(weights) for weight in weights], bool(lent)
        )
        return
    found = _CALL.match(call)
    if found is None:  # a barrier
        return
    shape = [int(n) for n in found["shape"].split(", ") if n.isdigit()]
    if call.startswith("allgather"):
        comm._allgather(_zeros(found["dtype"], (0, *shape)), [int(n) for n in counts])
    elif found["root"]:
        comm._broadcast(_zeros(found["dtype"], shape), int(found["root"]))
    elif size := int(np.prod(shape, dtype=np.int64)):
        zeros, op = _zeros(found["dtype"], (size,)), ReduceOp(found["op"])
        if op is ReduceOp.ADASUM:
            comm._allgather(zeros, [size] * comm.size)
        else:
            comm.reduce_parts([zeros], op, [1.0] * comm.size)


def _zeros(dtype: str, shape: tuple[int, ...] | list[int]) -> Array:
    """Returns this worker's contribution: zeros."""
    return np.zeros(shape, dtype_of(dtype))
