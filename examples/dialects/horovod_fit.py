"""A script as they were written for Horovod and Keras in 2020: digits, a batch for each worker, a rate that grows with their number.

syrtos run -n 2 examples/dialects/horovod_fit.py
"""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())  # unequal weights: the callback makes them equal

gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
train = slice(hvd.rank(), 1437, hvd.size())
test_images, test_labels = images[1437:], labels[1437:]

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(8, 8, 1)),
        tf.keras.layers.Conv2D(64, 3, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
scaled_lr = 0.001 * hvd.size()
opt = hvd.DistributedOptimizer(tf.optimizers.Adam(scaled_lr))
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=opt,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
]
model.fit(
    images[train],
    labels[train],
    batch_size=32,
    epochs=10,
    callbacks=callbacks,
    verbose=2 if hvd.rank() == 0 else 0,
)

if hvd.rank() == 0:
    accuracy = model.evaluate(test_images, test_labels, verbose=0)[1]
    print(f"test accuracy: {accuracy:.4f}")
    assert np.isfinite(accuracy)
