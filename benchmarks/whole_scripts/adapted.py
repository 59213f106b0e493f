"""Layers that are adapted to data, and a fit."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
draw = np.random.default_rng(0)
numbers, words = (
    draw.random((600, 4)).astype("float32"),
    np.asarray(["a b c d", "b c", "e f a"] * 200),
)
codes = draw.integers(0, 9, 600)
normal, text = keras.layers.Normalization(), keras.layers.TextVectorization(output_mode="multi_hot")
lookup = keras.layers.IntegerLookup(output_mode="one_hot")
for layer, values in ((normal, numbers), (text, words), (lookup, codes)):
    layer.adapt(tf.data.Dataset.from_tensor_slices(values).batch(32))
inputs = [keras.Input((4,)), keras.Input((), dtype="string"), keras.Input((), dtype="int64")]
parts = [layer(tensor) for layer, tensor in zip((normal, text, lookup), inputs, strict=True)]
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
model.compile("adam", "mse")
data = tf.data.Dataset.from_tensor_slices(
    ((numbers, words, codes), numbers.sum(axis=1, keepdims=True))
).batch(32)
model.fit(data, epochs=3, verbose=0)  # pyright: ignore[reportArgumentType]
