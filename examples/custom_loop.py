"""A training loop written by hand, explicit about its workers: the native API.

Each worker draws its own minibatches from its part of the digits; gradients are averaged, and the test accuracy is counted over all
workers. About 10 seconds; expect a test accuracy above 0.95.

    python examples/custom_loop.py
    syrtos run -n 2 examples/custom_loop.py
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import syrtos
import syrtos.keras

BATCH = 32  # on each worker
EPOCHS = 15

syrtos.init()
keras.utils.set_random_seed(0)  # equal weights to begin with; they would be broadcast anyway

digits = load_digits()
images = digits.images[..., np.newaxis].astype("float32") / 16
train_x, test_x, train_y, test_y = train_test_split(
    images, digits.target, test_size=0.2, random_state=0
)
mine = slice(syrtos.rank(), None, syrtos.size())
steps = len(train_x) // syrtos.size() // BATCH  # the same on every worker
batches = (
    tf.data.Dataset.from_tensor_slices((train_x[mine], train_y[mine]))
    .shuffle(2000, seed=syrtos.rank())
    .batch(BATCH)
)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = syrtos.keras.DistributedOptimizer(keras.optimizers.Adam(0.002))


@tf.function
def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return syrtos.allreduce(loss, syrtos.ReduceOp.MEAN)


for epoch in range(EPOCHS):
    for x, y in batches.take(steps):
        loss = train_step(x, y)
    if syrtos.rank() == 0:
        print(f"epoch {epoch + 1}: loss {float(loss):.4f}")

right = tf.reduce_sum(tf.cast(tf.argmax(model(test_x[mine]), axis=1) == test_y[mine], tf.int32))
accuracy = int(syrtos.allreduce(right)) / len(test_x)
if syrtos.rank() == 0:
    print(f"test accuracy: {accuracy:.4f}")
