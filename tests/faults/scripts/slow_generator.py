"""Trains from a generator without an end that is slower than the steps. With a word: rank 1 gets SIGINT in the fifth batch."""

import os
import signal
import sys
import time
from collections.abc import Iterator

import keras
import numpy as np

import syrtos

BATCH = np.ones((8, 4), "float32")


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        time.sleep(0.02)
        yield BATCH, BATCH[:, :1]


class Interrupt(keras.callbacks.Callback):
    """Sends this process SIGINT, on one rank."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if syrtos.rank() == 1 and batch == 4:
            os.kill(os.getpid(), signal.SIGINT)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
callbacks = [Interrupt()] if len(sys.argv) > 1 else []
model.fit(batches(), steps_per_epoch=10, epochs=2, verbose=0, callbacks=callbacks)
