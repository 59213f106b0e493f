"""The native API: ranks, and exchanges of arrays and tensors between workers.

Every exchange is called by all workers of its process set in the same order. NumPy arrays (or anything
`numpy.asarray` takes) give NumPy arrays; TensorFlow tensors give tensors, eagerly and inside `tf.function`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeVar

from syrtos.comm import world
from syrtos.comm.communicator import Communicator, ReduceOp
from syrtos.errors import ConfigurationError
from syrtos.settings import Options

Function = TypeVar("Function")


def unconverted(function: Function) -> Function:
    """Keeps TensorFlow's autograph, which rewrites what a `tf.function` calls, from rewriting ours."""
    vars(function)["autograph_info__"] = {}
    return function


class ProcessSet:
    """Some of the workers. Exchanges given this set take place between its members only.

    Attributes:
        ranks: the members' ranks in the world, ascending.
        comm: the members' communicator, or None on workers outside the set.
    """

    def __init__(self, ranks: Sequence[int], comm: Communicator | None) -> None:
        self.ranks = tuple(ranks)
        self.comm = comm

    @property
    def included(self) -> bool:
        """Whether this worker is a member."""
        return self.comm is not None

    def rank(self) -> int:
        """This worker's rank inside the set."""
        return _member(self).rank

    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    def close(self) -> None:
        """Frees what the set holds. Called by all its members."""
        if self.comm is not None:
            self.comm.close()
            self.comm = None


def init(options: Options | None = None) -> None:
    """Joins the world this process was started in. Calling it again does nothing.

    Raises:
        WorldError: fewer workers met than were started.
    """
    world.init(options)


def is_initialized() -> bool:
    """Whether the world has been joined."""
    return world.joined()


def shutdown() -> None:
    """Writes down what the ledger still holds. MPI itself ends with the process."""
    if world.joined():
        world.current().ledger.flush()


@unconverted
def rank() -> int:
    """This worker's number, 0 to ``size() - 1``."""
    return _aware().rank


@unconverted
def size() -> int:
    """The number of workers."""
    return world.current().world.size


@unconverted
def local_rank() -> int:
    """This worker's number on its host."""
    return _aware().local_rank


@unconverted
def local_size() -> int:
    """The number of workers on this host."""
    return world.current().world.local_size


@unconverted
def node_rank() -> int:
    """The number of this worker's host."""
    return _aware().node_rank


def process_set(ranks: Sequence[int]) -> ProcessSet:
    """Forms a subgroup. All workers of the world call it, members or not.

    Raises:
        ConfigurationError: a rank is unknown or named twice.
    """
    comm = world.current().comm
    if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= r < comm.size for r in ranks):
        raise ConfigurationError(
            f"A process set is one or more different ranks of the world (0 to {comm.size - 1}). Received: {list(ranks)}."
        )
    members = sorted(ranks)
    comm.agree(f"process_set {members}")
    group = comm.split(int(comm.rank in members))
    return ProcessSet(members, group if comm.rank in members else None)


@unconverted
def allreduce(value: Any, op: ReduceOp = ReduceOp.SUM, process_set: ProcessSet | None = None) -> Any:
    """Reduces ``value`` elementwise over the workers; shape and dtype are the same on all."""
    return _call("allreduce", value, process_set, op=op)


@unconverted
def allgather(value: Any, process_set: ProcessSet | None = None) -> Any:
    """Concatenates the workers' values along the first axis in rank order; they may differ in their first dimension."""
    return _call("allgather", value, process_set)


@unconverted
def broadcast(value: Any, root: int = 0, process_set: ProcessSet | None = None) -> Any:
    """Gives every worker ``root``'s value (a rank inside the process set)."""
    return _call("broadcast", value, process_set, root=root)


@unconverted
def reducescatter(value: Any, op: ReduceOp = ReduceOp.SUM, process_set: ProcessSet | None = None) -> Any:
    """Reduces ``value`` over the workers and leaves each its rows of the result."""
    return _call("reducescatter", value, process_set, op=op)


@unconverted
def alltoall(value: Any, splits: Sequence[int] | None = None, process_set: ProcessSet | None = None) -> Any:
    """Sends ``splits[i]`` rows to worker ``i``; returns the received rows and how many came from each worker."""
    return _call("alltoall", value, process_set, splits=splits)


@unconverted
def barrier(process_set: ProcessSet | None = None) -> None:
    """Returns when every worker has called it."""
    _member(process_set).barrier()


def broadcast_object(value: Any, root: int = 0, process_set: ProcessSet | None = None) -> Any:
    """Gives every worker ``root``'s value: plain data (see `syrtos.comm.objects`), nothing is unpickled."""
    return _member(process_set).broadcast_object(value, root)


def allgather_object(value: Any, process_set: ProcessSet | None = None) -> list[Any]:
    """The list of all workers' values in rank order: plain data (see `syrtos.comm.objects`), nothing is unpickled."""
    return _member(process_set).allgather_object(value)


def _aware() -> Any:
    session = world.current()
    session.rank_aware = True
    return session.world


def _member(group: ProcessSet | None) -> Communicator:
    if group is None:
        return world.current().comm
    if group.comm is None:
        raise ConfigurationError(
            f"This worker (rank {world.current().world.rank}) is no member of the process set {list(group.ranks)}: "
            "guard the call with `if process_set.included:`."
        )
    return group.comm


def _call(name: str, value: Any, group: ProcessSet | None, **arguments: Any) -> Any:
    comm = _member(group)
    tensors = _tensor_room(value)
    return getattr(tensors, name)(comm, value, **arguments) if tensors else getattr(comm, name)(value, **arguments)


def _tensor_room(value: Any) -> ModuleType | None:
    """The module that exchanges TensorFlow tensors, if ``value`` is one; frameworks are never loaded for it."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not tensorflow.is_tensor(value):
        return None
    return importlib.import_module("syrtos.keras.backends.tensorflow")
