"""Trains on images that a parallel `map` changes at random: ``augmented.py KIND OUT``. The script's seed is 3."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import syrtos

KIND, OUT = sys.argv[1:]
AUTOTUNE = tf.data.AUTOTUNE
keras.utils.set_random_seed(3)
images = np.random.default_rng(0).random((200, 16, 16, 3)).astype("float32")
layers = keras.Sequential(
    [
        keras.layers.RandomFlip("horizontal"),
        keras.layers.RandomRotation(0.1),
        keras.layers.Resizing(12, 12),
    ]
)


def augmented(image: Any, label: Any) -> Any:
    flipped = tf.image.random_flip_left_right(image)
    return tf.image.random_crop(tf.image.random_brightness(flipped, 0.2), (12, 12, 3)), label


data = tf.data.Dataset.from_tensor_slices((images, images[:, 0, 0, :1])).shuffle(200)
if KIND == "records":
    data = data.map(augmented, num_parallel_calls=AUTOTUNE).batch(32).prefetch(2)
elif KIND == "layers":
    data = data.batch(32).map(
        lambda image, label: (layers(image, training=True), label), num_parallel_calls=AUTOTUNE
    )
elif KIND == "any order":
    options = tf.data.Options()
    options.deterministic = False
    data = (
        data.with_options(options)
        .map(augmented, num_parallel_calls=8, deterministic=False)
        .shuffle(100)
        .batch(32)
    )
elif KIND == "python":
    noise = np.random.default_rng(1)
    data = data.map(
        lambda image, label: (
            tf.ensure_shape(
                tf.numpy_function(lambda x: x + noise.random(dtype="float32"), [image], tf.float32),
                (16, 16, 3),
            ),
            label,
        ),
        AUTOTUNE,
    ).batch(32)
model = keras.Sequential(
    [
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(1),
    ]
)
model.compile("sgd", "mse")
history = model.fit(data, epochs=3, verbose=0)
if syrtos.rank() == 0:
    np.savez(OUT, *model.get_weights(), np.asarray(history.history["loss"]))
