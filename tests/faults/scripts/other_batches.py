"""Trains on batches of BATCH rows, in epochs of STEPS steps; after WAITS of them steps take a second each."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

BATCH, STEPS = int(os.environ.get("BATCH", "16")), int(os.environ.get("STEPS", "10"))
WAITS = int(os.environ.get("WAITS", "0"))


class Waits(keras.callbacks.Callback):
    """Makes a file when so many steps are made, so that the run can be stopped there."""

    made = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.made += 1
        if WAITS and self.made >= WAITS:
            Path("waits").touch()
            time.sleep(1.0)


x = np.random.default_rng(0).normal(size=(160, 4)).astype("float32")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
fit = {"epochs": 4, "batch_size": BATCH, "verbose": 0, "steps_per_epoch": STEPS}
history = model.fit(x, x[:, :1], callbacks=[Waits()], **fit)
made = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
print("made", made, "in epochs", history.epoch, flush=True)
