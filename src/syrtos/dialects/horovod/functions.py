"""Variables and objects between workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from syrtos.dialects.horovod.basics import ProcessSet, comm_of, global_process_set
from syrtos.dialects.horovod.ops import root_in
from syrtos.keras import state


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> None:
    """Overwrites Keras or TensorFlow variables with the root's values."""
    del inplace
    state.broadcast(comm_of(process_set), variables, root_in(process_set, root_rank))


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object. Plain data (see `syrtos.comm.objects`): nothing is pickled."""
    del session, name
    return comm_of(process_set).broadcast_object(obj, root_in(process_set, root_rank))


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """`broadcast_object` with its options given."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all workers in rank order. Plain data: nothing is pickled."""
    del session, name
    return comm_of(process_set).allgather_object(obj)


def broadcast_global_variables(root_rank: int) -> None:
    """TensorFlow 1 kept all variables in its graph.

    Raises:
        RuntimeError: always: TensorFlow 2 has no such list.
    """
    raise RuntimeError(
        "hvd.broadcast_global_variables() needs TensorFlow 1's list of all variables. Write "
        f"hvd.broadcast_variables(model.variables, root_rank={root_rank}), or use "
        "hvd.callbacks.BroadcastGlobalVariablesCallback; syrtos also broadcasts before an optimizer's first step by itself."
    )
