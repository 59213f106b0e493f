"""Trainings each of which is slow in one way: `costly.py WAY`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

import syrtos

WAY = sys.argv[1]
RANK = syrtos.rank()
RANDOM = np.random.default_rng(0)
Batch = tuple[np.ndarray, np.ndarray]


def model(width: int, inputs: int = 16, optimizer: object = "sgd") -> keras.Model:
    keras.utils.set_random_seed(0)
    made = keras.Sequential(
        [keras.Input((inputs,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(1)]
    )
    made.compile(optimizer=optimizer, loss="mse")
    return made


def batches(count: int, size: int, pause: float = 0.0, inputs: int = 16) -> tf.data.Dataset:
    def draw() -> Iterator[Batch]:
        for _ in range(count):
            time.sleep(pause)
            yield (
                RANDOM.normal(size=(size, inputs)).astype("float32"),
                RANDOM.normal(size=(size, 1)).astype("float32"),
            )

    signature = (tf.TensorSpec((None, inputs), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    return tf.data.Dataset.from_generator(draw, output_signature=signature).repeat()


class Blocking(keras.callbacks.Callback):
    """Rank 0 alone works after each batch."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if RANK == 0:
            time.sleep(0.02)


class SlowHere(keras.layers.Layer):
    """Takes long on one worker."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        def wait(value: np.ndarray) -> np.ndarray:
            time.sleep(0.03 if RANK == 1 else 0.0)
            return value

        waited = tf.numpy_function(wait, [tf.stop_gradient(inputs)], tf.float32)
        return inputs + 0.0 * tf.reshape(waited, tf.shape(inputs))


class Heavy(keras.layers.Layer):
    """Has much to exchange and little to compute."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.heavy = self.add_weight(shape=(16, 125_000), name="heavy")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs + tf.reduce_mean(inputs @ self.heavy, axis=1, keepdims=True)


def loop_that_retraces() -> None:
    made = model(8)

    @tf.function
    def step(x: tf.Tensor, number: int) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(made(x) ** 2) * (1 + number)
        made.optimizer.apply(
            tape.gradient(loss, made.trainable_variables), made.trainable_variables
        )
        return loss

    for number in range(150):
        step(tf.ones((8, 16)), number)


def train() -> None:
    if WAY == "input":
        model(8).fit(batches(300, 32, pause=0.02), steps_per_epoch=300, verbose=0)
    elif WAY == "one reader":
        model(8).fit(
            batches(200, 32, pause=0.03 if RANK == 1 else 0.0), steps_per_epoch=200, verbose=0
        )
    elif WAY == "one worker":
        made = keras.Sequential([keras.Input((16,)), SlowHere(), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        made.fit(
            RANDOM.normal(size=(6400, 16)), RANDOM.normal(size=(6400, 1)), batch_size=32, verbose=0
        )
    elif WAY == "tiny batches":
        made = keras.Sequential([keras.Input((16,)), Heavy(), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        made.fit(
            RANDOM.normal(size=(1202, 16)),
            RANDOM.normal(size=(1202, 1)),
            batch_size=4,
            epochs=4,
            verbose=0,
        )
    elif WAY == "update":
        x, y = RANDOM.normal(size=(240, 2000)), RANDOM.normal(size=(240, 1))
        made = model(5_000, 2000, keras.optimizers.Adam())
        made.fit(x, y, batch_size=4, steps_per_epoch=60, verbose=0)
    elif WAY == "no callback":
        model(8).fit(batches(200, 32), steps_per_epoch=200, verbose=0)
    elif WAY == "callback":
        model(8).fit(batches(200, 32), steps_per_epoch=200, verbose=0, callbacks=[Blocking()])
    elif WAY == "checkpoints":
        made = model(6000, 400)
        saving = keras.callbacks.ModelCheckpoint(
            "/tmp/costly-{epoch}.keras" if len(sys.argv) < 3 else sys.argv[2], save_freq=2
        )
        made.fit(batches(150, 32, inputs=400), steps_per_epoch=150, verbose=0, callbacks=[saving])
    elif WAY == "retracing":
        loop_that_retraces()
    elif WAY == "skewed":
        size = 2048 if RANK == 0 else 512
        model(512, 256).fit(batches(500, size, inputs=256), steps_per_epoch=500, verbose=0)
    elif WAY == "network":  # with so much to compute that one worker alone would not be faster
        made = model(3000, 2000)
        x, y = RANDOM.normal(size=(6144, 2000)).astype("float32"), RANDOM.normal(size=(6144, 1))
        made.fit(x, y, batch_size=2048, epochs=4, verbose=0)
    elif WAY == "nothing":
        x, y = RANDOM.normal(size=(20_000, 256)), RANDOM.normal(size=(20_000, 1))
        model(2048, 256).fit(x, y, batch_size=1000, epochs=6, verbose=0)


train()
