"""Writes when each step of a worker ended, for who compares systems."""

import os
import time

import keras


class Clock(keras.callbacks.Callback):
    """Writes a line for each training step: the wall time at which it ended."""

    def __init__(self) -> None:
        super().__init__()
        self._file = open(f"steps-{os.getpid()}.txt", "a", buffering=1)  # noqa: SIM115 - until the process ends

    def on_train_batch_end(self, batch, logs=None):
        self._file.write(f"{time.time()}\n")
