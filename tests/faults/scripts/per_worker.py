"""Ranks with different numbers of batches: lengths known, then unknown; writes down the steps of each rank."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

RANK = int(os.environ["PMI_RANK"])
QUIET: Any = 0
X = np.random.default_rng(0).random((64, 4), np.float32)
Y = X.sum(axis=1, keepdims=True)
ROWS = 40 - 24 * RANK  # 5 batches of 8, and 2


class Steps(keras.callbacks.Callback):
    """Counts."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1


def steps(data: Any, epochs: int) -> dict[str, Any]:
    """Trains on ``data`` and says what happened."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    counter = Steps()
    history = model.fit(data, epochs=epochs, verbose=QUIET, callbacks=[counter])
    weights = [w.tolist() for w in model.get_weights()]
    return {"steps": counter.count, "loss": history.history["loss"], "weights": weights}


def batches() -> Iterator[Any]:
    """Can't tell their number."""
    for start in range(0, ROWS, 8):
        yield X[start : start + 8], Y[start : start + 8]


known = tf.data.Dataset.from_tensor_slices((X[:ROWS], Y[:ROWS])).batch(8)
signature = (tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32))
results = {
    "known": steps(known, 2),
    "unknown": steps(tf.data.Dataset.from_generator(batches, output_signature=signature), 2),
    "generator": steps(batches(), 1),
}
Path(f"told-{RANK}.json").write_text(json.dumps(results))
