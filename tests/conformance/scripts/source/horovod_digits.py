"""The same for Horovod, as SDK examples of `distribution={"mpi": ...}` have it."""

import os

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
with np.load(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "digits.npz")) as data:
    images, labels = (data[name][hvd.rank() :: hvd.size()] for name in ("images", "labels"))

tf.keras.utils.set_random_seed(hvd.rank())  # unequal weights: the broadcast makes them equal
model = tf.keras.Sequential(
    [tf.keras.Input((64,)), tf.keras.layers.Dense(10, activation="softmax")]
)
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1 * hvd.size()))
model.compile(optimizer, "sparse_categorical_crossentropy")
model.fit(
    images,
    labels,
    epochs=1,
    verbose=0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
)

place = f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()} on {os.environ['SM_CURRENT_HOST']}"
learnt = sum(float(np.abs(weights).sum()) for weights in model.get_weights())
print(f"{place}: {learnt:.6f}; {os.environ.get('NCCL_DEBUG')}")
if hvd.rank() == 0:
    model.save(os.path.join(os.environ["SM_MODEL_DIR"], "digits.keras"))
