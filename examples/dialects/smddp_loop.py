"""A SageMaker script for the distributed data parallel library, which knew eight GPUs and loops of one's own only.

syrtos run -n 2 examples/dialects/smddp_loop.py
"""

import smdistributed.dataparallel.tensorflow as dist
import tensorflow as tf
from sklearn.datasets import load_digits

dist.init()

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images[:1437], labels[:1437].astype("int64")))
dataset = dataset.repeat().shuffle(2000).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(32, [3, 3], activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.000125 * 8 * dist.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        loss_value = loss(labels, model(images, training=True))
    tape = dist.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))  # noqa: B905 - as in 2020
    if first_batch:
        dist.broadcast_variables(model.variables, root_rank=0)
        dist.broadcast_variables(opt.variables(), root_rank=0)
    return dist.oob_allreduce(loss_value)


for batch, (batch_images, batch_labels) in enumerate(dataset.take(400 // dist.size())):
    loss_value = training_step(batch_images, batch_labels, batch == 0)
    if batch % 50 == 0 and dist.rank() == 0:
        print(f"Step #{batch}\tLoss: {loss_value:.6f}")

if dist.rank() == 0:
    predicted = model(images[1437:]).numpy().argmax(axis=1)
    print(f"test accuracy: {(predicted == labels[1437:]).mean():.4f}")
