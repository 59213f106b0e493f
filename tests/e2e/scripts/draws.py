"""Draws by TensorFlow's own operations, also where a batch has fewer rows than there are workers."""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(4)


@tf.function
def jittered(x: tf.Tensor) -> tf.Tensor:
    return x + 0.1 * tf.random.normal(tf.shape(x))


@tf.function
def scaled(x: tf.Tensor) -> tf.Tensor:
    return jittered(x) * tf.random.uniform([], 0.9, 1.1)


class Noise(keras.layers.Layer):
    def call(self, x, training=False):  # noqa: ANN001, ANN201
        if not training:
            return x
        x = scaled(scaled(jittered(x)))
        x = tf.cond(
            tf.reduce_sum(x) > 0,
            lambda: x + 0.1 * tf.random.normal(tf.shape(x)),
            lambda: x * tf.random.uniform(tf.shape(x), 0.5, 1.0),
        )
        return tf.while_loop(
            lambda i, _: i < 3,
            lambda i, x: (i + 1, x + 0.05 * tf.random.normal(tf.shape(x))),
            [0, x],
        )[1]


class Mixed(keras.Sequential):
    def train_step(self, data):  # noqa: ANN001, ANN201
        x, y = data
        rows = tf.shape(x)[0]
        part, other = (tf.random.gamma([rows, 1], 0.5) for _ in range(2))
        part /= part + other
        order = tf.random.shuffle(tf.range(rows))
        counts = tf.cast(tf.random.poisson([rows, 1], 2.0), tf.float32)
        kinds = tf.cast(tf.random.categorical(tf.zeros([rows, 3]), 1), tf.float32)
        x = part * x + (1 - part) * tf.gather(x, order) + 0.01 * counts + 0.02 * kinds
        y = part * y + (1 - part) * tf.gather(y, order)
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(error, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"error": error}


model = Mixed([keras.layers.Dense(8, activation="tanh"), Noise(), keras.layers.Dense(1)])
x = np.random.default_rng(0).normal(size=(33, 5)).astype("float32")
model.compile(keras.optimizers.Adam(1e-2))
history = model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=4, verbose=0)
numbers = history.history["error"] + [float(np.abs(w).sum()) for w in model.get_weights()]

# Its first step makes the weights, and draws them from TensorFlow's own generator.
model = keras.Sequential([keras.layers.Dense(4, kernel_initializer=tf.random.normal)])
model.compile("sgd", "mse")
numbers += model.fit(x, x[:, :4], batch_size=8, epochs=2, verbose=0).history["loss"]
numbers += [float(np.abs(w).sum()) for w in model.get_weights()]
print("numbers", json.dumps(numbers))
