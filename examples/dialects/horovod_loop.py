"""A loop of one's own, as they were written for Horovod and TensorFlow 2: a tape that averages, variables broadcast after the first step.

syrtos run -n 2 examples/dialects/horovod_loop.py
"""

import horovod.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images[:1437], labels[:1437].astype("int64")))
dataset = dataset.repeat().shuffle(2000).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.001 * hvd.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        loss_value = loss(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))  # noqa: B905 - as in 2020
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return loss_value


for batch, (batch_images, batch_labels) in enumerate(dataset.take(400 // hvd.size())):
    loss_value = training_step(batch_images, batch_labels, batch == 0)
    if batch % 50 == 0 and hvd.local_rank() == 0:
        print(f"step #{batch}\tloss: {loss_value:.6f}")

predicted = model(images[1437:]).numpy().argmax(axis=1)
accuracy = hvd.allreduce(tf.constant(float((predicted == labels[1437:]).mean())))
if hvd.rank() == 0:
    print(f"test accuracy: {accuracy:.4f}")
