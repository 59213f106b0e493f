"""About a minute of one process: a convolutional network on pictures that are drawn."""

import keras
import numpy as np

keras.utils.set_random_seed(0)
draw = np.random.default_rng(0)
pictures, labels = draw.random((4096, 32, 32, 3)).astype("float32"), draw.integers(0, 10, 4096)
layers = [
    keras.layers.Conv2D(width, 3, strides=2, activation="relu", padding="same")
    for width in (32, 64, 128)
]
model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(pictures, labels, batch_size=128, epochs=12, verbose=0)  # pyright: ignore[reportArgumentType]
