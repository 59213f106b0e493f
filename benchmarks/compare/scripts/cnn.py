"""A convolutional network with BatchNormalization and Dropout, on scikit-learn's digits."""

import keras
from clock import Clock
from sklearn.datasets import load_digits

keras.config.set_floatx("float64")  # so that rounding is small
keras.utils.set_random_seed(1)
x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 8, 8, 1).astype("float64") / 16
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.01), loss)
model.fit(x, y, batch_size=64, epochs=2, shuffle=False, verbose=0, callbacks=[Clock()])
model.save_weights("after.weights.h5")
