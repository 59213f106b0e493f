"""A plain Keras script that writes down what it ended with."""

import json
import sys
from pathlib import Path

import keras
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x = rng.normal(size=(203, 8)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
model = keras.Sequential(
    [
        keras.layers.Input((8,)),
        keras.layers.Dense(64, "relu"),
        keras.layers.Dense(500, "relu"),
        keras.layers.Dense(1, "sigmoid"),
    ]
)
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=3, verbose=2)
weights = float(sum(np.abs(w).sum() for w in model.get_weights()))
Path(sys.argv[1]).write_text(json.dumps({"loss": history.history["loss"], "weights": weights}))
print("done")
