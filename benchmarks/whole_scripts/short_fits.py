"""Ten short fits over `tf.data`, with validation."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).random((600, 8)).astype("float32")
model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
for seed in range(10):
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).shuffle(600, seed)
    data = data.map(lambda a, b: (a * 2, b)).batch(32).prefetch(2)
    model.fit(data, epochs=2, validation_data=data, verbose=0)  # pyright: ignore[reportArgumentType]
