"""Writers of files, each killed at some point: ``python saving.py FOLDER``.

One process imports the frameworks, and forks a writer for every point. A writer first reads what the one before it has left, which must be
all old or all new, and is then killed while it writes other values: by SIGKILL when it opens, links or renames a file for the n-th time, or by
the kernel in the middle of a file.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from syrtos.keras import activate

FOLDER = Path(sys.argv[1]).resolve()
WATCHED = ("open", "os.rename", "os.link", "os.mkdir")


def model() -> Any:
    built = keras.Sequential(
        [keras.layers.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(64)]
    )
    built.compile("sgd", "mean_squared_error")
    return built


def value_of(arrays: list[Any]) -> float:
    """The one number that all arrays hold."""
    found = {float(number) for array in arrays for number in np.unique(np.asarray(array))}
    assert len(found) == 1, f"a mixture: {found}"
    return found.pop()


def filled(value: float) -> Any:
    built = model()
    built.set_weights([np.full_like(weight, value) for weight in built.get_weights()])
    return built


def into(load: Callable[[Any], Any]) -> float:
    built = filled(-1.0)
    load(built)
    return value_of(built.get_weights())


def backed_up() -> float:
    built = filled(-1.0)
    callback = keras.callbacks.BackupAndRestore(FOLDER / "backup")
    callback.set_model(built)
    callback.on_train_begin()
    assert isinstance(built._initial_epoch, int)
    return value_of(built.get_weights())


def back_up(value: float) -> None:
    callback = keras.callbacks.BackupAndRestore(FOLDER / "backup")
    callback.set_model(filled(value))
    callback.on_epoch_end(int(value))


def at(name: str) -> str:
    return str(FOLDER / name)


# name: how it is written, how it is read
KINDS: dict[str, tuple[Callable[[float], Any], Callable[[], float]]] = {
    "keras": (
        lambda value: filled(value).save(at("m.keras")),
        lambda: value_of(keras.saving.load_model(at("m.keras")).get_weights()),
    ),
    "h5": (
        lambda value: filled(value).save(at("m.h5")),
        lambda: value_of(keras.saving.load_model(at("m.h5")).get_weights()),
    ),
    "weights": (
        lambda value: filled(value).save_weights(at("m.weights.h5")),
        lambda: into(lambda built: built.load_weights(at("m.weights.h5"))),
    ),
    "shards": (
        lambda value: filled(value).save_weights(at("s.weights.json"), max_shard_size=2e-5),
        lambda: into(lambda built: built.load_weights(at("s.weights.json"))),
    ),
    "export": (
        lambda value: filled(value).export(at("exported"), verbose=False),
        lambda: value_of([v.numpy() for v in tf.saved_model.load(at("exported")).variables]),
    ),
    "checkpoint": (
        lambda value: tf.train.Checkpoint(model=filled(value)).write(at("ckpt")),
        lambda: into(
            lambda built: tf.train.Checkpoint(model=built).read(at("ckpt")).expect_partial()
        ),
    ),
    "backup": (back_up, backed_up),
}


class Kill:
    """Ends the process at the n-th of its doings in the folder; without n, counts them."""

    def __init__(self, at: int | None = None) -> None:
        self._left = at
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in WATCHED or not str(arguments[0]).startswith(str(FOLDER)):
            return
        self.seen.append(event)
        if len(self.seen) - 1 == self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_fork(function: Callable[[], Any]) -> tuple[int, Any]:
    """How a process ended that called the function (0, or the signal that killed it), and what the function returned."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(into, json.dumps(function()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(into)
    with os.fdopen(out) as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status <= 0, f"exit code {status}"
    return -status, json.loads(text) if text else None


def count(kind: str) -> tuple[list[str], int]:
    """What a writer does in the folder, and the size of its largest file; the old values stay behind."""
    KINDS[kind][0](1.0)
    seen = Kill().seen
    KINDS[kind][0](1.0)
    doings = list(seen)
    return doings, max(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())


def check_then_write(
    kind: str, possible: list[float], value: float, prepare: Callable[[], Any]
) -> float:
    write, read = KINDS[kind]
    found = read()
    assert found in possible, f"{found} is none of {possible}"
    os.write(1, f"  {kind}: holds {found}, writes {value}\n".encode())
    prepare()
    write(value)
    return found


def kill_in_the_middle(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def points_of(doings: list[str]) -> list[int]:
    """The first, the last, each at which something changes places, and two of the others."""
    moving = [n for n, event in enumerate(doings) if event == "os.rename"]
    linking = [n for n, event in enumerate(doings) if event == "os.link"]
    return sorted({0, len(doings) // 3, *linking[:1], *linking[-1:], *moving, len(doings) - 1})


def check(kind: str) -> None:
    _, (doings, size) = in_a_fork(lambda: count(kind))
    prepared: list[tuple[str, Callable[[], Any]]] = [
        *(
            (f"doing {n} of {len(doings)}, {doings[n]}", lambda n=n: Kill(n))
            for n in points_of(doings)
        ),
        *((f"byte {at} of {size}", lambda at=at: kill_in_the_middle(at)) for at in (1, size // 2)),
    ]
    possible, value = [1.0], 1.0
    for where, prepare in prepared:
        possible, value = [*possible, value], value + 1
        ended, _ = in_a_fork(
            lambda v=value, p=list(possible), prepare=prepare: check_then_write(kind, p, v, prepare)
        )
        assert ended in (signal.SIGKILL, signal.SIGXFSZ), f"{kind} was not killed at {where}"
        print(f"{kind}: killed at {where}", flush=True)
        if where is not prepared[-1][0]:  # removing it is a doing too
            for left in FOLDER.glob(".*.partial"):
                shutil.rmtree(left)
    in_a_fork(lambda: check_then_write(kind, [*possible, value], 0.0, lambda: None))
    assert in_a_fork(KINDS[kind][1])[1] == 0.0
    left = [path.name for path in FOLDER.rglob(".*")]
    assert not left, f"what killed writers have left was not removed: {left}"
    print(f"ok {kind}", flush=True)


if __name__ == "__main__":
    activate.keras3()
    for name in sys.argv[2:]:
        check(name)
