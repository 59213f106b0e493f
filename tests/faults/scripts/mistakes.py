"""Makes the named mistakes one after the other, and writes down what each rank was told; `uncaught:NAME` makes just that one."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from syrtos.comm import world

RANK = int(os.environ["PMI_RANK"])
QUIET: Any = 0
X = np.random.default_rng(0).random((64, 4), np.float32)
Y = X.sum(axis=1, keepdims=True)


def model(width: int = 3, **options: Any) -> keras.Sequential:
    """A small one, compiled."""
    made = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(width, name="first"), keras.layers.Dense(1)]
    )
    made.compile("sgd", "mse", **options)
    return made


def empty() -> None:
    """A data set without batches."""
    model().fit(
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(128, drop_remainder=True), verbose=QUIET
    )


def empty_of_unknown_length() -> None:
    """A filter that lets nothing through."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda *row: row[0][0] > 2).batch(8)
    model().fit(data, verbose=QUIET)


def lengths() -> None:
    """Each rank has filtered the data its own way."""
    rows = 64 - 16 * RANK
    model().fit(X[:rows], Y[:rows], batch_size=8, verbose=QUIET)


def lengths_unknown() -> None:
    """The same from a generator, which can't tell its length."""

    def batches() -> Iterator[Any]:
        for start in range(0, 64 - 16 * RANK, 8):
            yield X[start : start + 8], Y[start : start + 8]

    model().fit(batches(), verbose=QUIET)


def shuffle() -> None:
    """Each rank has an order of its own."""
    order = np.random.default_rng(random.SystemRandom().randrange(2**31)).permutation(len(X))
    model().fit(X[order], Y[order], batch_size=8, verbose=QUIET, shuffle=False)


def structure() -> None:
    """A layer is wider on rank 1."""
    model(width=3 + RANK).fit(X, Y, batch_size=8, verbose=QUIET)


def depth() -> None:
    """Rank 1 has one layer more."""
    deeper = keras.Sequential(
        [keras.Input((4,)), *(keras.layers.Dense(1) for _ in range(1 + RANK))]
    )
    deeper.compile("sgd", "mse")
    deeper.fit(X, Y, batch_size=8, verbose=QUIET)


def strategy_of_another() -> None:
    """A scope that knows nothing of the other workers: TensorFlow's own class, as a library may import it."""
    from tensorflow.python.distribute.mirrored_strategy import MirroredStrategy

    with MirroredStrategy(["cpu:0"]).scope():
        made = model()
    made.fit(X, Y, batch_size=8, verbose=QUIET)


def jit_of_a_loop() -> None:
    """XLA can't contain an exchange, and in a loop of the script's own it can't be turned off."""
    made, optimizer = model(), keras.optimizers.SGD(0.1)

    @tf.function(jit_compile=True)
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((made(X) - Y) ** 2)
        optimizer.apply(tape.gradient(loss, made.trainable_variables), made.trainable_variables)

    step()


def jit() -> None:
    """XLA can't contain an exchange: it compiles what lies between."""
    made = model(jit_compile=True)
    before = made.evaluate(X, Y, verbose=QUIET)
    made.fit(X, Y, batch_size=8, epochs=3, verbose=QUIET)
    assert made.evaluate(X, Y, verbose=QUIET) < before
    assert world.current().ledger.told["compiled"] == "all of it"


def told(mistake: Callable[[], None]) -> dict[str, str]:
    """What came of it."""
    keras.backend.clear_session()  # layers are numbered from the beginning again
    try:
        mistake()
    except BaseException as error:
        return {"type": type(error).__name__, "text": str(error)}
    return {"type": "", "text": ""}


MISTAKES: dict[str, Callable[[], None]] = {
    mistake.__name__: mistake
    for mistake in (
        empty,
        empty_of_unknown_length,
        lengths,
        lengths_unknown,
        shuffle,
        structure,
        depth,
        strategy_of_another,
        jit_of_a_loop,
        jit,
    )
}

if __name__ == "__main__":
    if sys.argv[1].startswith("uncaught:"):
        MISTAKES[sys.argv[1].removeprefix("uncaught:")]()
        sys.exit()
    results = {name: told(MISTAKES[name]) for name in sys.argv[1:]}
    Path(f"told-{RANK}.json").write_text(json.dumps(results))
