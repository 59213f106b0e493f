"""Start and end of `hvd`, ranks and sizes, process sets, and what the library was built with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from syrtos import api, errors, settings
from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.dialects import explicit_exchange
from syrtos.keras.features import profiling
from syrtos.keras.tensorflow import op_errors
from syrtos.topology import World


class _HorovodState:
    """The process sets that `init` and `add_process_set` have registered, by their ids.

    The first one is of all workers; there is none before `init`, and after `shutdown`.
    """

    def __init__(self, _session: world.Session) -> None:
        self.sets: dict[int, ProcessSet] = {}


def _sets() -> dict[int, ProcessSet]:
    return world.part(_HorovodState).sets if world.is_initialized() else {}


def _place() -> World:
    return world.current().world


class ProcessSet:
    """A set of workers, by their ranks in the world.

    Attributes:
        ranks: the members, ascending; None until the set is registered, if it stands for all
            workers.
        process_set_id: 0 for all workers; None until the set is registered.
    """

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        if ranks is not None and not isinstance(ranks, Iterable):
            raise errors.ConfigurationError(
                "A ProcessSet is made from ranks: syrtos brings its own MPI, and can't take"
                f" communicators of another. Received: {ranks!r}."
            )
        self.ranks: list[int] | None = None if ranks is None else sorted(ranks)
        self.process_set_id: int | None = None
        self._members: api.ProcessSet | None = None

    def _register(self, process_set_id: int, ranks: Iterable[int]) -> None:
        self.process_set_id, self.ranks = process_set_id, list(ranks)

    def size(self) -> int | None:
        """Returns the number of members; None if the set is not registered."""
        return None if self.process_set_id is None else len(self._registered_ranks())

    def rank(self) -> int:
        """Returns this worker's rank inside the set.

        Raises:
            ValueError: this worker is no member.
        """
        if not self.included():
            raise ValueError(f"rank {_place().rank} is no member of the process set {self.ranks}.")
        return self._registered_ranks().index(_place().rank)

    def included(self) -> bool | None:
        """Returns whether this worker is a member; None if the set is not registered."""
        return None if self.process_set_id is None else _place().rank in self._registered_ranks()

    def _registered_ranks(self) -> list[int]:
        return list(range(_place().size)) if self.ranks is None else self.ranks

    def __repr__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"
        )


global_process_set = ProcessSet()


def init(comm: object = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Joins the world. A second call registers the sets that the first did not.

    Args:
        comm: all ranks of the world, or None. Others are refused.
        process_sets: sets to register. ``"dynamic"`` is accepted: all sets are dynamic. A set of
            the same ranks as one of an earlier call is the same set.

    Raises:
        ConfigurationError: ``comm`` is not the whole world.
        ValueError: two sets have the same ranks, or a rank is unknown or named twice.
    """
    if not is_initialized():
        _begin(comm)
    before = {
        tuple(known._registered_ranks()): known for number, known in _sets().items() if number
    }
    for process_set in process_sets if process_sets and not isinstance(process_sets, str) else []:
        known = before.get(tuple(process_set._registered_ranks()))
        if known is None:
            add_process_set(process_set)
        else:
            process_set.process_set_id = known.process_set_id


def _begin(comm: object) -> None:
    explicit_exchange.begin("Horovod")
    _check_comm(comm)
    world.part(_HorovodState).sets[0] = global_process_set
    global_process_set._register(0, range(_place().size))
    asked = settings.environment().get("HOROVOD_TIMELINE", "DYNAMIC")
    # Horovod's word for a timeline that the script begins itself.
    if asked != "DYNAMIC":
        start_timeline(asked)


def _check_comm(comm: object) -> None:
    whole = list(range(_place().size))
    if comm is None or (isinstance(comm, list | tuple) and sorted(comm) == whole):
        return
    raise errors.ConfigurationError(
        f"hvd.init(comm=...) takes all ranks of the world ({whole}) or None. For some of them start"
        f" fewer workers, or register a ProcessSet. Received: {comm!r}."
    )


def shutdown() -> None:
    """Ends the use of the library and of all process sets; `init` may be called again."""
    if not is_initialized():
        return
    for process_set in _sets().values():
        process_set.process_set_id = None
    _sets().clear()
    api.shutdown()


def is_initialized() -> bool:
    """Returns whether `init` has been called, and not `shutdown` after it."""
    return bool(_sets())


def session() -> world.Session:
    """Returns the session of the world.

    Raises:
        ValueError: `init` has not been called.
    """
    if not is_initialized():
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return world.current()


@api.unconverted
def rank() -> int:
    """Returns this worker's rank."""
    return session().world.rank


@api.unconverted
def size() -> int:
    """Returns the number of workers."""
    return session().world.size


@api.unconverted
def local_rank() -> int:
    """Returns this worker's rank on its host."""
    return session().world.local_rank


@api.unconverted
def local_size() -> int:
    """Returns the number of workers on this host."""
    return session().world.local_size


@api.unconverted
def cross_rank() -> int:
    """Returns the number of this worker's host."""
    return session().world.node_rank


@api.unconverted
def cross_size() -> int:
    """Returns the number of hosts."""
    return session().world.node_count


def is_homogeneous() -> bool:
    """Returns whether all hosts have equally many workers."""
    place = session().world
    return place.local_size * place.node_count == place.size


def comm_of(process_set: ProcessSet) -> Communicator:
    """Returns the communicator of a registered set that this worker is a member of.

    Raises:
        ValueError: the set is not registered.
        ExchangeError: this worker is no member; it is a `tf.errors.InvalidArgumentError` as well.
    """
    everyone = session().comm
    registered = _registered_set(process_set)
    if registered is None:
        raise ValueError(
            f"{process_set} is not registered: give it to hvd.init or hvd.add_process_set first."
        )
    if registered is global_process_set:
        return everyone
    if registered._members is None or registered._members.comm is None:
        error = (
            f"rank {rank()} is no member of {process_set}: guard the call with"
            " process_set.included()."
        )
        # Horovod's own is an error of TensorFlow, which scripts catch.
        raise op_errors.of_tensorflow(errors.ExchangeError(error))
    return registered._members.comm


def _registered_set(process_set: ProcessSet) -> ProcessSet | None:
    """Returns the set registered under this one's id if it has the same ranks; else None."""
    known = None if process_set.process_set_id is None else _sets().get(process_set.process_set_id)
    return known if known and known._registered_ranks() == process_set._registered_ranks() else None


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set. All workers call it with the same ranks.

    Raises:
        ValueError: a rank is unknown or named twice, or a set of these ranks is registered already.
    """
    session()
    chosen = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    same = [other for other in _sets().values() if other.ranks == chosen._registered_ranks()]
    if chosen.process_set_id is not None or same:
        raise ValueError(f"{(same or [chosen])[0]} is registered already.")
    try:
        chosen._members = api.process_set(chosen._registered_ranks())
    except errors.ConfigurationError as error:
        raise ValueError(str(error)) from error
    chosen.process_set_id = next(number for number in itertools.count(1) if number not in _sets())
    _sets()[chosen.process_set_id] = chosen
    return chosen


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregisters a set. All workers call it.

    Returns:
        Whether the set was removed: False if it is not registered, or if it is the set of all
        workers.
    """
    known = _registered_set(process_set)
    if known is None or known is global_process_set:
        return False
    # A worker that removed it alone would leave the others waiting in an exchange of the set.
    session().comm.agree(f"remove process set {process_set.ranks}")
    if known._members is not None:
        known._members.close()
    if known.process_set_id is not None:
        del _sets()[known.process_set_id]
    known.process_set_id = known._members = process_set.process_set_id = None
    return True


def process_set_of(process_set_id: int) -> ProcessSet:
    """Returns the registered set with this id.

    Raises:
        ValueError: there is none.
    """
    session()
    if process_set_id not in _sets():
        raise ValueError(
            f"No process set has the id {process_set_id}. Registered: {sorted(_sets())}."
        )
    return _sets()[process_set_id]


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Returns the registered sets, as Horovod's own tests ask for them."""
    return {number: process_set._registered_ranks() for number, process_set in _sets().items()}


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records exchanges, agreements and the time between them from now on.

    The recording becomes a file that Chrome and Perfetto show.

    Args:
        file_path: the file of rank 0. `stop_timeline` writes it; at the end of the script it is
            written with all workers on one clock.
        mark_cycles: ignored: this engine has no cycles.
    """
    del mark_cycles
    session()
    profiling.begin_timeline(world.current(), Path(file_path))


def stop_timeline() -> None:
    """Ends the recording that `start_timeline` has begun."""
    session()
    profiling.stop_timeline(world.current())


def mpi_threads_supported() -> bool:
    """Returns whether other MPI code may run in threads beside ours: False."""
    session()
    return False


def _constant(name: str, value: bool | int = False) -> Callable[[], bool | int]:
    """Returns a function of this name that always gives the same value."""

    def answer() -> bool | int:
        return value

    answer.__name__ = answer.__qualname__ = name
    answer.__doc__ = f"{value!r}: the engine is MPICH over shared memory and the network."
    return answer


mpi_enabled, mpi_built = _constant("mpi_enabled", True), _constant("mpi_built", True)
gloo_enabled, gloo_built = _constant("gloo_enabled"), _constant("gloo_built")
# A version number in Horovod; 0 without NCCL.
nccl_built = _constant("nccl_built", 0)
ddl_built, ccl_built, cuda_built, rocm_built = (
    _constant(name) for name in ("ddl_built", "ccl_built", "cuda_built", "rocm_built")
)
