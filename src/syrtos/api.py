"""The native API: ranks, and exchanges of arrays and tensors between workers.

Every exchange is called by all workers of its process set in the same order. NumPy arrays (or
anything `numpy.asarray` takes) give NumPy arrays; TensorFlow tensors give tensors, eagerly and
inside `tf.function`, where errors come as TensorFlow's that quote the ones named here. Before
`init` all of them raise WorldError.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeVar

from syrtos.comm import world
from syrtos.comm.arrays import ReduceOp
from syrtos.comm.communicator import Communicator
from syrtos.errors import ConfigurationError
from syrtos.settings import Options
from syrtos.topology import World

Function = TypeVar("Function")


def unconverted(function: Function) -> Function:
    """Keeps a function from TensorFlow's autograph, which rewrites what a `tf.function` calls."""
    vars(function)["autograph_info__"] = {}
    return function


class ProcessSet:
    """A subset of the workers. Exchanges given this set take place between its members only.

    Attributes:
        ranks: the members' ranks in the world, ascending.
        comm: the members' communicator, or None on workers outside the set.
    """

    def __init__(self, ranks: Sequence[int], comm: Communicator | None) -> None:
        self.ranks = tuple(ranks)
        self.comm = comm

    @property
    def included(self) -> bool:
        """Returns whether this worker is a member."""
        return self.comm is not None

    def rank(self) -> int:
        """Returns this worker's rank inside the set."""
        return comm_of(self).rank

    def size(self) -> int:
        """Returns the number of members."""
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
    """Returns whether the world has been joined."""
    return world.is_initialized()


def shutdown() -> None:
    """Writes down what the ledger still holds. MPI itself ends with the process."""
    if world.is_initialized():
        world.current().ledger.flush()


@unconverted
def rank() -> int:
    """Returns this worker's number, 0 to ``size() - 1``."""
    return _rank_aware_world().rank


@unconverted
def size() -> int:
    """Returns the number of workers."""
    return world.current().world.size


@unconverted
def local_rank() -> int:
    """Returns this worker's number on its host."""
    return _rank_aware_world().local_rank


@unconverted
def local_size() -> int:
    """Returns the number of workers on this host."""
    return world.current().world.local_size


@unconverted
def node_rank() -> int:
    """Returns the number of this worker's host."""
    return _rank_aware_world().node_rank


def process_set(ranks: Sequence[int]) -> ProcessSet:
    """Forms a subgroup. All workers of the world call it with the same ranks, members or not.

    Args:
        ranks: the members' ranks in the world, in any order; inside the set they are numbered in
            ascending order.

    Returns:
        The set, to be given to exchanges between its members.

    Raises:
        ConfigurationError: a rank is unknown or named twice, or there are none.
        OutOfStepError: workers name different ranks.
    """
    comm = world.current().comm
    if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= r < comm.size for r in ranks):
        raise ConfigurationError(
            f"A process set is one or more different ranks of the world (0 to {comm.size - 1})."
            f" Received: {list(ranks)}."
        )
    members = sorted(ranks)
    comm.agree(f"process_set {members}")
    group = comm.split(int(comm.rank in members))
    if comm.rank in members:
        return ProcessSet(members, group)
    # Nobody else has this group, and an MPI has some 2000 communicators.
    group.close()
    return ProcessSet(members, None)


@unconverted
def allreduce(
    value: Any, op: ReduceOp = ReduceOp.SUM, process_set: ProcessSet | None = None
) -> Any:
    """Reduces arrays elementwise over the workers: by default their sum.

    Args:
        value: an array or tensor of numbers, of the same shape and dtype on all workers.
        op: SUM (the default), MEAN, MIN, MAX, PRODUCT or ADASUM. MEAN and ADASUM need floats.
            16-bit floats are added up in float32.
        process_set: the workers that take part; all by default.

    Returns:
        The reduced array, of the shape and dtype of ``value``, bitwise equal on all workers.
        Tensors are differentiable for SUM and MEAN.

    Raises:
        OutOfStepError: shapes, dtypes or ``op`` differ between workers, or a worker calls another
            exchange.
        ExchangeError: the dtype has no such reduction.
        StalledError: a worker did not come within the watchdog's time (`--timeout`).
        ConfigurationError: this worker is no member of ``process_set``.
    """
    return _call("allreduce", value, process_set, op=op)


@unconverted
def allgather(value: Any, process_set: ProcessSet | None = None) -> Any:
    """Concatenates the workers' arrays along the first axis, in rank order.

    Args:
        value: an array or tensor, of the same dtype on all workers, and of the same shape but for
            the first dimension. A scalar counts as one row.
        process_set: the workers that take part; all by default.

    Returns:
        All rows, of shape (sum of the first dimensions, ...), equal on all workers.

    Raises:
        OutOfStepError: dtypes, or dimensions after the first, differ between workers, or a worker
            calls another exchange.
        StalledError: a worker did not come within the watchdog's time (`--timeout`).
        ConfigurationError: this worker is no member of ``process_set``.
    """
    return _call("allgather", value, process_set)


@unconverted
def broadcast(value: Any, root: int = 0, process_set: ProcessSet | None = None) -> Any:
    """Copies one worker's array to all.

    Args:
        value: an array or tensor, of the same shape and dtype on all workers; only the root's
            numbers matter.
        root: the rank, inside the process set, of the worker whose array is copied; 0 by default.
        process_set: the workers that take part; all by default.

    Returns:
        The root's array.

    Raises:
        OutOfStepError: shapes, dtypes or ``root`` differ between workers, or a worker calls another
            exchange.
        ExchangeError: ``root`` is no rank of the process set.
        StalledError: a worker did not come within the watchdog's time (`--timeout`).
        ConfigurationError: this worker is no member of ``process_set``.
    """
    return _call("broadcast", value, process_set, root=root)


@unconverted
def reducescatter(
    value: Any, op: ReduceOp = ReduceOp.SUM, process_set: ProcessSet | None = None
) -> Any:
    """Reduces arrays elementwise over the workers, and splits the result by rows.

    Args:
        value: an array or tensor with at least one dimension, of the same shape and dtype on all
            workers.
        op: the reduction, as for `allreduce`; SUM by default.
        process_set: the workers that take part; all by default.

    Returns:
        This worker's rows of the reduced array: contiguous, in rank order; numbers of rows differ
        by at most one.

    Raises:
        OutOfStepError: shapes, dtypes or ``op`` differ between workers, or a worker calls another
            exchange.
        ExchangeError: the dtype has no such reduction, or ``value`` is a scalar.
        StalledError: a worker did not come within the watchdog's time (`--timeout`).
        ConfigurationError: this worker is no member of ``process_set``.
    """
    return _call("reducescatter", value, process_set, op=op)


@unconverted
def alltoall(
    value: Any, splits: Sequence[int] | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Sends groups of rows from each worker to every worker.

    Args:
        value: an array or tensor of rows, first those for rank 0, then those for rank 1, and so on;
            of the same dtype on all workers, and of the same shape but for the first dimension.
        splits: the number of rows for each worker; by default equally many.
        process_set: the workers that take part; all by default.

    Returns:
        The received rows in rank order of their senders, and the number of rows from each worker: a
        list, or for tensors int32 of shape (workers,).

    Raises:
        OutOfStepError: dtypes, or dimensions after the first, differ between workers, or a worker
            calls another exchange.
        ExchangeError: ``splits`` does not add up to the rows, or is missing where they can't be
            split equally; ``value`` is a scalar.
        StalledError: a worker did not come within the watchdog's time (`--timeout`).
        ConfigurationError: this worker is no member of ``process_set``.
    """
    return _call("alltoall", value, process_set, splits=splits)


@unconverted
def barrier(process_set: ProcessSet | None = None) -> None:
    """Waits until every worker has called it.

    Args:
        process_set: the workers that take part; all by default.

    Raises:
        OutOfStepError: a worker calls another exchange.
        StalledError: a worker did not come within the watchdog's time (`--timeout`).
        ConfigurationError: this worker is no member of ``process_set``.
    """
    comm_of(process_set).barrier()


def broadcast_object(value: Any, root: int = 0, process_set: ProcessSet | None = None) -> Any:
    """Copies one worker's Python value to all.

    Args:
        value: plain data: str, int, float, bool, None, bytes, lists, tuples, sets, dicts and NumPy
            arrays. Nothing is pickled. Only the root's value is sent.
        root: the rank, inside the process set, of the worker whose value is copied; 0 by default.
        process_set: the workers that take part; all by default.

    Returns:
        The root's value.

    Raises:
        OutOfStepError: ``root`` differs between workers, or a worker calls another exchange.
        ExchangeError: the value is no plain data, or ``root`` is no rank of the process set.
        StalledError: a worker did not come within the watchdog's time (`--timeout`).
        ConfigurationError: this worker is no member of ``process_set``.
    """
    return comm_of(process_set).broadcast_object(value, root)


def allgather_object(value: Any, process_set: ProcessSet | None = None) -> list[Any]:
    """Gathers a Python value of each worker.

    Args:
        value: plain data, as for `broadcast_object`.
        process_set: the workers that take part; all by default.

    Returns:
        The values in rank order, on all workers.

    Raises:
        OutOfStepError: a worker calls another exchange.
        ExchangeError: the value is no plain data.
        StalledError: a worker did not come within the watchdog's time (`--timeout`).
        ConfigurationError: this worker is no member of ``process_set``.
    """
    return comm_of(process_set).allgather_object(value)


def _rank_aware_world() -> World:
    session = world.current()
    # A script that asks for its rank decides itself which rank writes a file.
    session.rank_aware = True
    return session.world


def comm_of(group: ProcessSet | None) -> Communicator:
    """Returns the communicator of a process set; None: that of all workers.

    Raises:
        ConfigurationError: the process is not a member of it.
        WorldError: before `init`.
    """
    if group is None:
        return world.current().comm
    if group.comm is None:
        raise ConfigurationError(
            f"This worker (rank {world.current().world.rank}) is no member of the process set"
            f" {list(group.ranks)}: guard the call with `if process_set.included:`."
        )
    return group.comm


def _call(name: str, value: Any, group: ProcessSet | None, **arguments: Any) -> Any:
    comm = comm_of(group)
    tensors = _tensor_room(value)
    return (
        getattr(tensors, name)(comm, value, **arguments)
        if tensors
        else getattr(comm, name)(value, **arguments)
    )


def _tensor_room(value: Any) -> ModuleType | None:
    """Returns the module that exchanges a framework's tensors, if ``value`` is one.

    No framework is loaded for it.
    """
    # A value is a tensor only of a framework that is imported already.
    tensorflow, jax, torch = (sys.modules.get(name) for name in ("tensorflow", "jax", "torch"))
    if tensorflow is not None and tensorflow.is_tensor(value):
        return importlib.import_module("syrtos.keras.tensorflow.ops")
    if jax is not None and isinstance(value, jax.Array):
        return importlib.import_module("syrtos.keras.jax.ops")
    if torch is not None and isinstance(value, torch.Tensor):
        return importlib.import_module("syrtos.keras.torch.ops")
    return None
