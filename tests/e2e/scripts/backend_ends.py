"""One worker ends in the middle of `fit`: ``backend_ends.py HOW RANK``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import keras
import numpy as np

import syrtos

HOW, RANK = sys.argv[1], int(sys.argv[2])


class End(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.optimizer.iterations != 25 or syrtos.rank() != RANK:
            return
        if HOW == "raise":
            raise RuntimeError("this rank fails")
        if HOW == "exit":
            os._exit(0)
        os.kill(os.getpid(), getattr(signal, HOW))


x = np.random.default_rng(0).normal(size=(640, 8)).astype("float32")
model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x[:, :1], batch_size=16, epochs=50, verbose=0, callbacks=[End()])
