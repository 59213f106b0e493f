"""Adam on kernels that are split over the workers (JAX), for more steps than it takes to look at its moments."""

import keras
import numpy as np

devices = keras.distribution.list_devices()
mesh = keras.distribution.DeviceMesh((1, len(devices)), ("batch", "model"), devices)
layout = keras.distribution.LayoutMap(mesh)
layout[".*kernel"] = (None, "model")
keras.distribution.set_distribution(
    keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(2)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
model.fit(x, x[:, :2], batch_size=8, epochs=3, verbose=0)
print("trained")
