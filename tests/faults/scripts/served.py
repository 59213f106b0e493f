"""Trains on parameter servers with something going wrong: ``served.py WHAT OUT``. Each worker writes what it saw to OUT/RANK."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import syrtos

keras: Any = tf.keras

WHAT, OUT = sys.argv[1], Path(sys.argv[2])
RANK = syrtos.rank()
SLOW = 0.05


class Trouble(keras.callbacks.Callback):
    """Rank 1's."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if RANK != 1:
            return
        if WHAT == "slow":
            time.sleep(SLOW)
        if self.steps == 5 and WHAT == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.steps == 5 and WHAT == "vanished":
            os._exit(0)
        if self.steps == 5 and WHAT == "error":
            raise RuntimeError("this worker gives up")


keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(2048, 8)).astype(np.float32)
y = (x @ rng.normal(size=(8, 1))).astype(np.float32)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
trouble = Trouble()
model.fit(x, y, batch_size=32, epochs=1, verbose=0)  # all have traced their step
first, trouble.steps = trouble.steps, 0
if WHAT == "killed by rank 0" and RANK == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if WHAT == "vanished rank 0" and RANK == 0:
    os._exit(0)
started = time.monotonic()
history = model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[trouble]).history
took = time.monotonic() - started
loss = model.evaluate(x, y, verbose=0)
seen = {
    "steps": trouble.steps,
    "took": took,
    "history": history,
    "evaluated": loss,
    "updates": int(model.optimizer.iterations),
    "weights": float(sum(np.abs(w).sum() for w in model.get_weights())),
}
(OUT / str(RANK)).write_text(json.dumps(seen))
