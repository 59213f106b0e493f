"""Trains for a while, slowly until a file `fast` is there, and writes down the weights: `preempted.py FOLDER`."""

import sys
import time
from pathlib import Path

import keras
import numpy as np

OUT = Path(sys.argv[1])


class Pace(keras.callbacks.Callback):
    """Gives a test the time to do something in the middle of the training."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if not (OUT / "fast").exists():
            time.sleep(0.2)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        print(f"epoch {epoch} ends", flush=True)


keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
x = rng.normal(size=(96, 8)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential(
    [keras.layers.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
)
model.compile("adam", "mse")
model.fit(x, y, batch_size=16, epochs=10, verbose=0, callbacks=[Pace()])
Path(OUT / "weights.bin").write_bytes(b"".join(w.tobytes() for w in model.get_weights()))
print("done")
