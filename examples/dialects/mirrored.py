"""`tf.distribute.MirroredStrategy` with `fit` and with a loop of one's own. Under `syrtos run` its devices are the workers.

syrtos run -n 2 examples/dialects/mirrored.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
train = (
    tf.data.Dataset.from_tensor_slices((images[:1437], labels[:1437]))
    .shuffle(1437, seed=1)
    .batch(64)
)
test = tf.data.Dataset.from_tensor_slices((images[1437:], labels[1437:])).batch(64)

tf.keras.utils.set_random_seed(1)
strategy = tf.distribute.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")


def make_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


with strategy.scope():
    model = make_model()
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.fit(strategy.experimental_distribute_dataset(train), epochs=5, steps_per_epoch=22, verbose=2)
print(f"fit: test accuracy: {model.evaluate(test, verbose=0)[1]:.4f}")

with strategy.scope():
    model = make_model()
    optimizer = tf.keras.optimizers.Adam()
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        losses = loss_object(labels, model(images, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=64)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905 - as in the guide
    return loss


@tf.function
def distributed_train_step(inputs):
    losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(5):
    total, batches = 0.0, 0
    for batch in strategy.experimental_distribute_dataset(train):
        total, batches = total + distributed_train_step(batch), batches + 1
    print(f"Epoch {epoch + 1}, loss: {total / batches:.4f}")
accuracy.update_state(labels[1437:], model(images[1437:]))
print(f"loop: test accuracy: {accuracy.result():.4f}")
