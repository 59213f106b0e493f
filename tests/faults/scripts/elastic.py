"""Trains at a leisurely pace, on any number of workers with the same result: ``elastic.py OUT DATA [SECONDS]``, a pause after each step until OUT has a
file ``hurry``.

What depends on the number of workers by its nature (BatchNormalization over a worker's rows, torch's Dropout) is not in the model.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import syrtos

OUT, DATA, *MORE = sys.argv[1:]
PAUSE = float(MORE[0]) if MORE else 0.0
SAMPLES, BATCH = 211, 16
Path(OUT).mkdir(exist_ok=True)


class Pace(keras.callbacks.Callback):
    """Rank 0 notes the number of workers of each step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if PAUSE and not Path(OUT, "hurry").exists():
            time.sleep(PAUSE)
        if syrtos.rank() == 0:
            with Path(OUT, "steps.txt").open("a") as file:
                print(syrtos.size(), file=file)


keras.utils.set_random_seed(11)
rng = np.random.default_rng(3)
x = rng.normal(size=(SAMPLES, 6)).astype("float32")
y = (x[:, :1] * x[:, 1:2]).astype("float32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01, gradient_accumulation_steps=3), "mse", metrics=["mae"])
callbacks = [
    Pace(),
    keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
    keras.callbacks.CSVLogger(f"{OUT}/log.csv"),
]
given: dict[str, Any] = {
    "epochs": 6,
    "verbose": 0,
    "callbacks": callbacks,
    "validation_data": (x[:50], y[:50]),
}
if DATA == "planned":
    import syrtos.data

    first = model.fit(syrtos.data.from_arrays(x, y, batch_size=BATCH, seed=4), **given)
else:
    first = model.fit(x, y, batch_size=BATCH, **given)
second = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=callbacks[:1])
if syrtos.rank() == 0:
    np.savez(f"{OUT}/weights.npz", *model.get_weights())
    Path(OUT, "results.json").write_text(
        json.dumps([first.history, second.history, second.epoch], default=float)
    )
