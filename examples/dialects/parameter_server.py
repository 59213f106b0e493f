"""The parameter server guide of TensorFlow: a coordinator that schedules steps, and waits for them.

syrtos run -n 2 --ps 1 examples/dialects/parameter_server.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
tf.keras.utils.set_random_seed(1)

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
    min_shard_bytes=256 << 10, max_shards=2
)
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=partitioner)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.05)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step_fn(iterator):
    def replica_fn(batch_images, batch_labels):
        with tf.GradientTape() as tape:
            predicted = model(batch_images, training=True)
            loss = loss_fn(batch_labels, predicted)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905 - as in 2020
        accuracy.update_state(batch_labels, predicted)
        return loss

    batch_images, batch_labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_images, batch_labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


def dataset_fn():
    train = tf.data.Dataset.from_tensor_slices((images[:1437], labels[:1437]))
    return train.shuffle(1437).repeat().batch(32)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(lambda _context: dataset_fn())


per_worker_iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
for epoch in range(10):
    accuracy.reset_state()
    for _ in range(45):
        last = coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    print(
        f"Finished epoch {epoch}, accuracy is {accuracy.result().numpy():.4f}, last loss {last.fetch():.4f}"
    )

accuracy.reset_state()
accuracy.update_state(labels[1437:], model(images[1437:]))
print(f"test accuracy: {accuracy.result().numpy():.4f}")
