"""The multi-worker guide of TensorFlow: the chief saves the model, the others save to folders of their own.

syrtos run -n 2 examples/dialects/multi_worker_mirrored.py
"""

import os
import tempfile

import tensorflow as tf
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
tf.keras.utils.set_random_seed(1)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch_size = 32 * strategy.num_replicas_in_sync

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.1),
        metrics=["accuracy"],
    )


def dataset_fn(context):
    batch_size = context.get_per_replica_batch_size(global_batch_size)
    whole = tf.data.Dataset.from_tensor_slices((images[:1437], labels[:1437]))
    mine = whole.shard(context.num_input_pipelines, context.input_pipeline_id)
    return mine.shuffle(1437).batch(batch_size)


model.fit(strategy.distribute_datasets_from_function(dataset_fn), epochs=10, verbose=2)
loss, accuracy = model.evaluate(images[1437:], labels[1437:], verbose=0)

resolver = strategy.cluster_resolver
task_type, task_id = (resolver.task_type, resolver.task_id) if resolver else (None, None)
chief = task_type is None or task_type == "chief" or (task_type == "worker" and task_id == 0)
folder = tempfile.mkdtemp()
path = os.path.join(folder if chief else tempfile.mkdtemp(), "model.keras")
model.save(path)
if chief:
    again = tf.keras.models.load_model(path)
    print(f"saved and loaded: {again.count_params()} weights")
    print(f"test accuracy: {accuracy:.4f}")
