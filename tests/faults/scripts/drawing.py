"""Keras on torch, where Dropout, the order of the data and callbacks draw from one generator. Prints a digest of the weights.

`drawing.py EVERY STEP MARK`: snapshots lie EVERY steps apart; after step STEP rank 1 is killed, unless the file MARK is there.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch

import syrtos
from syrtos.keras.recovery.replay import Protection

EVERY, LAST, MARK = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
protection: Any = Protection
protection._interval_after = lambda *_: EVERY


class Drawing(keras.callbacks.Callback):
    steps = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        torch.rand(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if syrtos.rank() == 1 and self.steps == LAST and not MARK.exists():
            MARK.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        torch.rand(1)


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(56, 8)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2)]
model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy")
callbacks = [Drawing()]
model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=callbacks, validation_data=(x, y))
print(hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest())
