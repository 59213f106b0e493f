"""Exchanges of variables and objects between workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from syrtos.dialects.horovod.basics import ProcessSet, comm_of, global_process_set
from syrtos.dialects.horovod.ops import broadcast_, root_in
from syrtos.keras.tensorflow import op_errors

if TYPE_CHECKING:
    from syrtos.dialects.protocols import DialectVariable


def broadcast_variables(
    variables: Iterable[DialectVariable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Overwrites Keras or TensorFlow variables with the root's values.

    Eagerly this happens at once; in a graph, when the operation that is returned runs.
    """
    del inplace
    assigned = broadcast_(list(variables), root_rank, process_set=process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


def broadcast_object(
    obj: object,
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object, plain data (see `syrtos.comm.objects`): nothing is pickled."""
    del session, name
    # Scripts catch TensorFlow's errors, which Horovod's exchanges raise.
    with op_errors.raising():
        return comm_of(process_set).broadcast_object(obj, root_in(process_set, root_rank))


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[object], Any]:
    """Returns `broadcast_object` with its options bound."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: object,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all workers in rank order. They are plain data: nothing is pickled."""
    del session, name
    with op_errors.raising():
        return comm_of(process_set).allgather_object(obj)


def broadcast_global_variables(root_rank: int) -> tf.Operation | None:
    """Overwrites all variables of a graph of TensorFlow 1 when the returned operation runs.

    Raises:
        RuntimeError: operations run eagerly: TensorFlow 2 has no list of all variables.
    """
    if not tf.executing_eagerly():
        return broadcast_variables(tf.compat.v1.global_variables(), root_rank)
    raise RuntimeError(
        "hvd.broadcast_global_variables() needs TensorFlow 1's list of all variables. Write"
        f" hvd.broadcast_variables(model.variables, root_rank={root_rank}), or use"
        " hvd.callbacks.BroadcastGlobalVariablesCallback; syrtos also broadcasts before an"
        " optimizer's first step by itself."
    )
