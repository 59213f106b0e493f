"""Trains a model whose variables are Flax's, and saves it by Orbax: ``... FOLDER``."""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np

folder = Path(sys.argv[1])
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).random((20, 3), "float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
saving = keras.callbacks.OrbaxCheckpoint(str(folder / "saved"), save_freq="epoch")
history = model.fit(
    x, y, batch_size=7, epochs=2, verbose=0, validation_data=(x, y), callbacks=[saving]
).history
print("epochs saved:", sorted(os.listdir(folder / "saved")))
print("found", json.dumps({name: history[name] for name in sorted(history)}))
