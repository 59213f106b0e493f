"""Keras on JAX where TensorFlow is not installed: JAX arrays through the native API too."""

from __future__ import annotations

import sys

sys.modules["tensorflow"] = None  # type: ignore[assignment]

import jax.numpy as jnp
import keras
import numpy as np

import syrtos

x = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=7, epochs=2, verbose=0)
model.save(sys.argv[1] + "/model.keras")
assert keras.saving.load_model(sys.argv[1] + "/model.keras").predict(x, verbose=0).shape == (30, 1)
total = syrtos.allreduce(jnp.arange(3.0) + syrtos.rank())
assert type(total).__module__.startswith("jax"), type(total)
assert total.tolist() == [1.0, 3.0, 5.0]
print("trained without TensorFlow", flush=True)
