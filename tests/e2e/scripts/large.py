"""Eight steps of a model of 5M parameters, with Adam."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
model = keras.Sequential(
    [keras.Input((1000,)), keras.layers.Dense(2500, "relu"), keras.layers.Dense(1000)]
)
model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=1.0), "mse")
x = random.normal(size=(64, 1000)).astype("float32")
model.fit(x, x, batch_size=8, verbose=0)
