"""A small transformer that predicts the next character of Python's own library."""

import pathlib

import keras
import numpy as np
from clock import Clock

keras.config.set_floatx("float64")  # so that rounding is small
keras.utils.set_random_seed(1)
text = pathlib.Path(keras.__path__[0], "src/layers/layer.py").read_bytes()[:60_000]
ids = np.frombuffer(text, np.uint8).astype("int32") % 128
x = np.stack([ids[i : i + 64] for i in range(0, 32_000, 16)])
y = np.stack([ids[i + 1 : i + 65] for i in range(0, 32_000, 16)])
inputs = keras.Input((64,), dtype="int32")
h = keras.layers.Embedding(128, 128)(inputs)
for _ in range(1):
    a = keras.layers.LayerNormalization()(h)
    h = h + keras.layers.MultiHeadAttention(4, 32, dropout=0.1)(a, a, use_causal_mask=True)
    a = keras.layers.LayerNormalization()(h)
    h = h + keras.layers.Dense(128)(keras.layers.Dense(512, activation="gelu")(a))
model = keras.Model(inputs, keras.layers.Dense(128)(h))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.01), loss)
model.fit(x, y, batch_size=64, epochs=1, shuffle=False, verbose=0, callbacks=[Clock()])
model.save_weights("after.weights.h5")
