"""The variables of a replica: made equal, and proven equal."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import numpy as np

from syrtos.comm import world
from syrtos.comm.communicator import Array, Communicator
from syrtos.comm.objects import dtype_of
from syrtos.errors import DivergenceError, OutOfStepError
from syrtos.keras import backend, keras_internals

if TYPE_CHECKING:
    from syrtos.keras.protocols import (
        CutVariable,
        FrameworkVariable,
        Layer,
        Model,
        NamedVariable,
        Optimizer,
        Variable,
    )

Item = TypeVar("Item")


def broadcast(comm: Communicator, variables: Iterable[FrameworkVariable], root: int = 0) -> None:
    """Gives every worker ``root``'s values.

    Args:
        comm: the workers.
        variables: of Keras or of its framework, the same on all workers. Those that have no value
            at ``root`` yet (they were created while a function is traced) stay as they are.
    """
    found = unique(variables)
    known = backend.active()
    if not known.eager():
        known.broadcast_in_graph(comm, found, root)
        return
    ready = comm.broadcast(np.array([known.has_value(v) for v in found], np.uint8), root)
    for variable in (v for v, flag in zip(found, ready, strict=True) if flag):
        has_value = known.has_value(variable)
        mine = (
            np.array(memory_of(variable))
            if has_value
            else np.zeros(tuple(variable.shape), dtype_of(dtype_name(variable)))
        )
        value = comm.broadcast(mine, root)
        # Most replicas begin equal: no second copy is made then.
        if not has_value or _bytes_of(value) != _bytes_of(mine):
            known.write(variable, value)


def of_model(model: Model) -> list[Variable]:
    """Returns the variables of a model that must be equal on all workers.

    They are weights, seeds, metrics, and its optimizer's variables. Gradients that are being
    accumulated are each worker's own, unless all compute global batches; so are optimizers that
    train alone for some steps.
    """
    found = [*variables_in(model), *backend.active().buffers_of(model)]
    optimizer: Optimizer | None = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizers_differ():
        found += of_optimizer(optimizer)
    return unique(found)


def optimizers_differ() -> bool:
    """Returns whether workers train alone for some steps, with own optimizers (`--sync-every`)."""
    if not world.is_initialized():
        return False
    session = world.current()
    return session.options.sync_every > 0 and session.world.size > 1


def of_optimizer(optimizer: Optimizer) -> list[Variable]:
    """Returns the variables of an optimizer that must be equal on all workers.

    Variables of which each worker keeps a part are left out.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    own = (
        set()
        if backend.computes_global_batches()
        else set(map(id, keras_internals.accumulated_by(inner)))
    )
    return [v for v in variables_of(optimizer) if id(v) not in own and not is_cut(v)]


def optimizers_of(model: Model) -> list[Optimizer]:
    """Returns a model's optimizers.

    They are that of `compile`, and others that it or its layers keep, also in lists and
    dictionaries, as GANs do.
    """
    # Any attributes of layers: what is no optimizer falls out below.
    values: list[Any] = [getattr(model, "optimizer", None)]
    for layer in keras_internals.layers_of(model):
        for value in vars(layer).values():
            # not by `+=`, which a tuple that TensorFlow has wrapped takes for a sum of tuples
            values.extend(
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list | tuple)
                else [value]
            )
    return unique(v for v in values if hasattr(v, "apply_gradients") and hasattr(v, "variables"))


def variables_in(model: Layer) -> list[Variable]:
    """Returns a model's variables; none before it is built, when Keras 2 refuses to list them."""
    try:
        # Among those of Keras 2 are tables of lookup layers.
        return [v for v in model.variables if hasattr(v, "shape")]
    except ValueError:
        return []


def variables_of(optimizer: Optimizer) -> list[Variable]:
    """Returns an optimizer's variables."""
    variables = optimizer.variables
    # A method in the optimizers of old Keras 2.
    if callable(variables):
        variables = variables()
    return [*variables, *keras_internals.loss_scale_of(optimizer)]


def check_structure(comm: Communicator, variables: Sequence[NamedVariable]) -> None:
    """Compares names, shapes and dtypes across workers.

    Raises:
        OutOfStepError: with the first variable that differs.
    """
    mine = [f"{name_of(v)} {tuple(v.shape)} {dtype_name(v)}" for v in variables]
    # A number is compared first: the texts travel only where they differ.
    digest = float(zlib.crc32("\n".join(map(_remove_numbers, mine)).encode()))
    if len(set(comm.agree("compare model structure", digest))) == 1:
        return
    everyone = comm.allgather_object(mine)
    different = next(
        (rows for rows in zip(*everyone, strict=False) if len(set(map(_remove_numbers, rows))) > 1),
        tuple(f"{len(v)} variables" for v in everyone),
    )
    raise OutOfStepError(
        "Workers built different models. The first difference:\n"
        + "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(different))
        + "\nThe script must build the same model on every rank: look for code that depends on the"
        " rank, the host or unseeded random numbers."
    )


def _remove_numbers(text: str) -> str:
    """Removes the numbers that Keras appends to names.

    They count the layers that a process has made, which may differ.
    """
    return re.sub(r"_\d+\b", "", text)


def check_equal(comm: Communicator, variables: Sequence[NamedVariable], step: int) -> None:
    """Compares a checksum of every variable across workers.

    Raises:
        DivergenceError: names the first variable that differs, and the ranks.
    """
    mine = [checksum(v) for v in variables]
    if are_equal(comm, mine):
        return
    table = comm.allgather(np.asarray([mine], np.int64))
    first = int(np.argmax((table != table[0]).any(axis=0)))
    values = table[:, first].tolist()
    groups = {v: [rank for rank, other in enumerate(values) if other == v] for v in values}
    raise DivergenceError(
        f"The replicas have diverged by step {step}: `{name_of(variables[first])}` is the first"
        f" variable that differs, between ranks {' / '.join(map(str, groups.values()))}. All"
        " replicas must hold equal weights after every step. Usually a script or layer assigns"
        " variables from something that differs by rank (time, host, unseeded random numbers, its"
        " own share of the data), or a `train_step` makes its updates without an optimizer of"
        " Keras (by one of `torch.optim`), which would exchange gradients. `--check-every 1` finds"
        " the step."
    )


def are_equal(comm: Communicator, checksums: Sequence[int]) -> bool:
    """Returns whether all workers have the same checksums."""
    digest = float(zlib.crc32(np.asarray(checksums, np.int64).tobytes()))
    return len(set(comm.agree("compare weights", digest))) == 1


def checksum(variable: FrameworkVariable, limit: int | None = None) -> int:
    """Returns a 32-bit digest of the value's bytes, or of the first ``limit`` of them.

    It is 0 for a variable without a value. All forms of NaN count as one.
    """
    if not is_cut(variable) and not backend.active().has_value(variable):
        return 0
    value = memory_of(variable).reshape(-1)
    if limit is not None:
        value = value[: -(-limit // value.itemsize)]
    # Processors and libraries make NaN with other bits of its sign and payload.
    if value.dtype.kind in "fc" and (is_nan := np.isnan(value)).any():
        value = np.where(is_nan, value.dtype.type(np.nan), value)
    return zlib.crc32(_bytes_of(value)[:limit])


def _bytes_of(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def is_cut(variable: object) -> TypeGuard[CutVariable]:
    """Returns whether each worker keeps only a part of the variable, as `sharding` does.

    Reading such a variable gathers it.
    """
    return hasattr(variable, "gather_whole")


def memory_of(variable: FrameworkVariable) -> Array:
    """Returns the variable's value, without a copy where the framework can lend it."""
    return variable.gather_whole() if is_cut(variable) else backend.active().memory_of(variable)


def unique(variables: Iterable[Item]) -> list[Item]:
    """Returns the variables, or other objects, in order and without repetitions."""
    # By identity: `==` of two variables compares their values.
    return list({id(v): v for v in variables}.values())


def of_metrics(model: Model) -> list[Variable]:
    """Returns the variables in which a model's metrics count."""
    return unique(v for metric in getattr(model, "metrics", []) for v in metric.variables)


def held_objects(variables: Iterable[FrameworkVariable]) -> list[FrameworkVariable]:
    """Returns the framework's objects that Keras variables hold."""
    return [backend.active().held_object(variable) for variable in variables]


def identity(variable: FrameworkVariable) -> int:
    """Returns one number for a Keras variable and for the framework's object that it holds."""
    return backend.active().identity(variable)


def name_of(variable: NamedVariable) -> str:
    """Returns the name by which a person knows a variable."""
    # Among the weights of lookup layers of Keras 2 is a table, which has no name.
    path = getattr(variable, "path", None)
    return path or getattr(variable, "name", type(variable).__name__)


def dtype_name(variable: FrameworkVariable) -> str:
    """Returns the name of a dtype, for the variables of Keras and of frameworks alike."""
    return getattr(variable.dtype, "name", None) or str(variable.dtype)
