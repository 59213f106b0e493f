"""The variables and callbacks of one `fit` on one worker, committed between steps and put back.

Weights and slots of optimizers, which every worker holds alike, are divided among the workers of
each host; each worker also stores what may differ.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeGuard, cast

import numpy as np

from syrtos.checkpoint import encoding
from syrtos.checkpoint.encoding import Arrays, NotStorable, as_dtype, decode, encode
from syrtos.checkpoint.head import facts_of
from syrtos.comm import world
from syrtos.comm.objects import dtype_of
from syrtos.errors import SnapshotError
from syrtos.keras import backend
from syrtos.keras.replica import accumulation, state

if TYPE_CHECKING:
    from keras.callbacks import CSVLogger, ProgbarLogger

    from syrtos.comm.communicator import Array
    from syrtos.keras.protocols import Model, Optimizer, Variable

# Attributes of callbacks that Keras sets, or that `fit` sets again.
_KERAS_SETS = {"model", "_model", "params", "validation_data"}
_PLAIN = (bool, int, float, str, type(None))
# Bytes in the arrays of an attribute of a script's own callback: more may be its data, which the
# script makes again.
_LARGEST = 64 << 20
# Keras reverses it at the first end of an epoch at which `monitor_op` is None, a function, which is
# not kept (EarlyStopping and ReduceLROnPlateau, seen in 3.15.1).
_REVERSED = "min_delta"
# Keras sets these by what is in a CSV file when `fit` begins.
_LOG_SETS = {"append", "append_header"}
# Facts about a part of a snapshot, as JSON; `variables`, `callbacks` and `replay` say which there
# are.
Facts = dict[str, Any]
CallbackFacts = TypedDict(
    "CallbackFacts",
    {
        "class": str,
        "kept": dict[str, object],
        "left": list[str],
        "written": NotRequired[int | None],
    },
)


# -- variables -------------------------------------------------------------------------------------


def variables_of(model: Model) -> tuple[list[Variable], list[Variable]]:
    """Returns the variables that all workers hold alike, and those that each stores for itself."""
    own = _gradients_in_the_making(model)
    slots = slots_of(model)
    found = state.unique(
        [
            *state.variables_in(model),
            *backend.active().buffers_of(model),
            *state.of_metrics(model),
            *slots,
        ]
    )
    alike = [*trainable(model), *(slots if not state.optimizers_differ() else [])]
    own |= {id(v) for v in found} - {id(v) for v in alike}
    return [v for v in found if id(v) not in own], [v for v in found if id(v) in own]


def _gradients_in_the_making(
    model: Model, of: Callable[[Optimizer], bool] = lambda _: True
) -> set[int]:
    """Returns the identities of the variables in which a model's optimizers accumulate.

    ``of`` chooses the optimizers.
    """
    return {
        id(v)
        for each in filter(of, state.optimizers_of(model))
        for v in accumulation.accumulated_by(each)
    }


def trainable(model: Model) -> list[Variable]:
    """Returns a model's trainable variables; none before it is built."""
    return list(model.trainable_variables) if state.variables_in(model) else []


def slots_of(model: Model) -> list[Variable]:
    """Returns the variables of all of a model's optimizers."""
    return [v for optimizer in state.optimizers_of(model) for v in state.variables_of(optimizer)]


def _shapes_and_dtypes(variables: Sequence[Variable]) -> list[str]:
    """Returns shapes and dtypes, which tell models apart."""
    # Not names: they hold numbers that depend on what else a process has made.
    return [f"{tuple(v.shape)} {state.dtype_name(v)}" for v in variables]


def _owners(shared: Sequence[Variable], ranks: int) -> list[int]:
    """Returns the rank that stores each variable that all hold alike; all store about as much."""
    load = [0] * ranks
    owners = []
    for variable in shared:
        owners.append(load.index(min(load)))
        load[owners[-1]] += math.prod(variable.shape) + 1
    return owners


def variables(model: Model, local_rank: int, local_size: int) -> tuple[Arrays, Arrays, Facts]:
    """Returns this worker's part of the shared values, its own values, and facts about both.

    Shared values are those that all workers hold alike. The framework may have lent the values:
    they are to be used before the next step.
    """
    backend.active().settle(model)
    (shared, own), sums = (
        variables_of(model),
        _gradients_in_the_making(model, accumulation.are_added_up),
    )
    # Where workers hold parts of variables, all must read each, also one that another stores.
    together = backend.active().splits_variables()
    arrays: Arrays = {}
    for index, (variable, owner) in enumerate(
        zip(shared, _owners(shared, local_size), strict=True)
    ):
        if owner == local_rank or together:
            value = state.memory_of(variable)
            arrays |= {f"shared {index}": value} if owner == local_rank else {}
    mine = {f"own {index}": state.memory_of(variable) for index, variable in enumerate(own)}
    added_up = {f"own {index}": state.dtype_name(v) for index, v in enumerate(own) if id(v) in sums}
    return (
        arrays,
        mine,
        {
            "shared": _shapes_and_dtypes(shared),
            "own": _shapes_and_dtypes(own),
            "added up": added_up,
        },
    )


def equal_variables(model: Model) -> list[Variable]:
    """Returns the stored variables that are equal on all workers between two steps.

    These are all but each worker's own gradients in the making.
    """
    shared, own = variables_of(model)
    each_workers = _gradients_in_the_making(
        model, lambda each: not accumulation.are_of_whole_batches(each)
    )
    return [*shared, *(v for v in own if id(v) not in each_workers)]


def own_of(pieces: Sequence[bytes], rank: int, size: int) -> tuple[Facts, Arrays]:
    """Returns what rank ``rank`` of ``size`` restores, from the pieces that each worker has stored.

    There may have been more or fewer workers.
    """
    count = len(pieces)
    mine = pieces[min(rank, count - 1)]
    facts, arrays = facts_of(mine), encoding.unpack(mine)
    if count == size:
        return facts, arrays
    for name, dtype in facts["added up"].items():
        everyone = [as_dtype(encoding.unpack(piece)[name], dtype_of(dtype)) for piece in pieces]
        arrays[name] = sum(everyone[1:], everyone[0]) if rank == 0 else np.zeros_like(everyone[0])
    facts["borrowed"] = rank >= count
    return facts, arrays


def callbacks_kept(chosen: Sequence[object], facts: Facts) -> list[CallbackFacts]:
    """Returns what was kept of these callbacks.

    If it was kept by another rank, those are left out which this one does not have: rank 0 alone
    writes logs.
    """
    kept: list[CallbackFacts] = facts["callbacks"]
    if not facts.get("borrowed"):
        return kept
    names = iter([type(each).__name__ for each in chosen])
    wanted = next(names, None)
    found: list[CallbackFacts] = []
    for fact in kept:
        if fact["class"] == wanted:
            found.append({**fact, "written": None} if "written" in fact else fact)
            wanted = next(names, None)
    return found


def put_back_variables(model: Model, alike: Arrays, mine: Arrays, facts: Facts) -> None:
    """Assigns the values that all hold alike, of all parts, and this worker's own.

    Raises:
        SnapshotError: the model has other variables than the one that was stored.
    """
    backend.active().settle(model)
    (shared, own), accumulated = variables_of(model), _gradients_in_the_making(model)
    sums = _gradients_in_the_making(model, accumulation.are_added_up)
    if (_shapes_and_dtypes(shared), _shapes_and_dtypes(own)) != (facts["shared"], facts["own"]):
        raise SnapshotError(
            "The script has built another model than before: its variables differ from those in the"
            " snapshot in number, shape or dtype. A run is continued by the script that began it."
            " Start it anew with another --run-dir."
        )
    for index, variable in enumerate(shared):
        _assign(variable, alike[f"shared {index}"])
    for index, variable in enumerate(own):
        _assign(variable, mine[f"own {index}"])
        if id(variable) in accumulated:
            # The first batches of this process may have shown another kind than those before the
            # snapshot.
            accumulation.convert(
                world.sharing().comm,
                variable,
                was_added_up=f"own {index}" in facts["added up"],
                is_added_up=id(variable) in sums,
            )


def _assign(variable: Variable, value: Array) -> None:
    dtype = dtype_of(state.dtype_name(variable))
    backend.active().write(variable, as_dtype(value, dtype).reshape(tuple(variable.shape)))


# -- callbacks -------------------------------------------------------------------------------------


def callbacks(
    chosen: Sequence[object], begun_with: Sequence[Mapping[str, object]], arrays: Arrays
) -> list[CallbackFacts]:
    """Returns the attributes of callbacks that hold numbers, texts, arrays or collections of them.

    Single numbers and texts are those that training has changed: the script gives the others again,
    and may give others than before (a path, a patience).
    """
    return [_callback(each, begun, arrays) for each, begun in zip(chosen, begun_with, strict=True)]


def plain_attributes(callback: object) -> dict[str, object]:
    """Returns the attributes of a callback that are a number, a text or None."""
    return {name: value for name, value in vars(callback).items() if type(value) in _PLAIN}


def _callback(callback: object, begun_with: Mapping[str, object], arrays: Arrays) -> CallbackFacts:
    kept: dict[str, object] = {}
    left: list[str] = []
    is_log = _is_csv_log(callback)
    for name, value in vars(callback).items():
        if name in _KERAS_SETS or (is_log and name in _LOG_SETS):
            continue
        if name == _REVERSED and hasattr(callback, "monitor_op") and type(value) in (int, float):
            value = abs(value)
            if abs(cast("float", begun_with.get(name, value))) == value:
                continue
        if type(value) in _PLAIN and name in begun_with and begun_with[name] == value:
            continue
        found: Arrays = {}
        try:
            encoded = encode(value, found, len(arrays))
        except (NotStorable, RecursionError):
            left.append(name)
            continue
        if _is_own(callback) and sum(array.nbytes for array in found.values()) > _LARGEST:
            left.append(name)
            continue
        kept[name] = encoded
        arrays |= found
    facts: CallbackFacts = {"class": type(callback).__name__, "kept": kept, "left": left}
    if _is_csv_log(callback):
        facts["written"] = _csv_log_length(callback)
    return facts


def put_back_callbacks(
    chosen: Sequence[object], facts: Sequence[CallbackFacts], arrays: Arrays
) -> None:
    """Sets attributes again, and reports those of a script's own callback that could not be stored.

    Raises:
        SnapshotError: the script has other callbacks than before.
    """
    if [type(each).__name__ for each in chosen] != [fact["class"] for fact in facts]:
        raise SnapshotError(
            f"`fit` has other callbacks ({', '.join(type(each).__name__ for each in chosen)}) than"
            f" before ({', '.join(fact['class'] for fact in facts)}). A run is continued by the"
            " script that began it."
        )
    for callback, fact in zip(chosen, facts, strict=True):
        for name, value in fact["kept"].items():
            _set(callback, name, decode(value, arrays))
        names = ", ".join(fact["left"])
        if names and fact["class"] == "LambdaCallback":
            print(
                f"syrtos: what the functions of LambdaCallback ({names}) have changed of the script, as"
                " lists that they append to, is as the script made it.",
                file=sys.stderr,
            )
        elif names and _is_own(callback):
            print(
                f"syrtos: attributes of {fact['class']} that hold other objects than numbers, texts"
                f" and arrays, or over 64 MiB, are as its __init__ left them: {names}",
                file=sys.stderr,
            )


def _is_own(callback: object) -> bool:
    """Returns whether a script has made the callback's class."""
    return not type(callback).__module__.startswith(("keras.", "tf_keras."))


def _set(callback: object, name: str, value: object) -> None:
    """Sets an attribute; a collection stays the same object, which the script may have shared."""
    now = getattr(callback, name, None)
    if type(now) is list and type(value) is list:
        now[:] = value
    elif (type(now) is dict and type(value) is dict) or (type(now) is set and type(value) is set):
        now.clear()
        now.update(value)
    else:
        setattr(callback, name, value)


def keep_written(chosen: Sequence[object], facts: Sequence[CallbackFacts]) -> dict[str, int]:
    """Makes a log that is continued keep its lines. It is called before `on_train_begin`.

    Returns the lengths of the logs when the snapshot was made, in bytes, by their paths: see
    `cut_logs`.
    """
    lengths: dict[str, int] = {}
    for callback, fact in zip(chosen, facts, strict=False):
        if "written" in fact and _is_csv_log(callback):
            callback.append = True
            if fact["written"] is not None:
                lengths[callback.filename] = fact["written"]
    return lengths


def cut_logs(lengths: Mapping[str, int]) -> None:
    """Removes from logs the lines of what is trained again."""
    for path, length in lengths.items():
        # Without its file, a log begins anew.
        with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
            # Never longer than it is: that would append zeros.
            file.truncate(min(length, os.path.getsize(path)))


def begin_logs(chosen: Sequence[object]) -> None:
    """Makes the file of each CSV log, after `on_train_begin`."""
    # Keras 2 makes it with the first line, and leaves that of an earlier run until then.
    for callback in chosen:
        if _is_csv_log(callback) and callback.csv_file is not None:
            callback.csv_file.write("")


def _csv_log_length(callback: CSVLogger) -> int | None:
    """Returns the length of a CSV log in bytes; None where it has none, or not on this machine."""
    if callback.csv_file is None or not os.path.isfile(callback.filename):
        return None
    # Of a file that is closed all lines are written.
    with contextlib.suppress(ValueError):
        callback.csv_file.flush()
    return os.path.getsize(callback.filename)


# By the names of classes: they may be those of Keras 3 or of Keras 2, which need not be installed.
def _is_csv_log(callback: object) -> TypeGuard[CSVLogger]:
    return _has_base(callback, "CSVLogger")


def _is_progress_bar(callback: object) -> TypeGuard[ProgbarLogger]:
    return _has_base(callback, "ProgbarLogger")


def _has_base(callback: object, name: str) -> bool:
    return any(base.__name__ == name for base in type(callback).__mro__)


def show_epoch(chosen: Sequence[object], epoch: int) -> None:
    """Shows the progress bar of an epoch that goes on in its middle."""
    for callback in chosen:
        if _is_progress_bar(callback):
            callback.on_epoch_begin(epoch)
