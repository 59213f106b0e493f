"""Trains a tiny model on all ranks; `training.py FAULT` lets something go wrong on rank 1."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import syrtos.testing

RANK = int(os.environ["PMI_RANK"])
FAULT = sys.argv[1]
QUIET: Any = 0
X = np.random.default_rng(0).random((64, 4), np.float32)
Y = X.sum(axis=1, keepdims=True)


class Diverge(keras.callbacks.Callback):
    """Rank 1 assigns a weight that the others don't."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if RANK == 1 and batch == 3:
            model.get_layer("second").kernel.assign(np.full((3, 1), 7.0, np.float32))


class Tell(keras.callbacks.Callback):
    """Leaves a file for the test to see."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        Path(f"begun-{RANK}").touch()


def callbacks() -> list[Any]:
    """What goes wrong in the middle of training."""
    if FAULT in ("exception", "exit", "kill", "hang"):
        return [Tell(), syrtos.testing.fail_at(rank=1, step=5, how=FAULT)]
    return [Tell(), Diverge()] if FAULT == "diverge" else [Tell()]


model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1, name="second")]
)
model.compile("sgd", "mse")
if FAULT == "evaluate" and RANK == 1:
    model.evaluate(X, Y, batch_size=8, verbose=QUIET)
epochs = 1 if FAULT in ("none", "end_early") and RANK == 1 else 1 if FAULT == "none" else 10000
model.fit(X, Y, batch_size=8, epochs=epochs, verbose=QUIET, callbacks=callbacks())
