"""The same for MultiWorkerMirroredStrategy, as in TensorFlow's guide: every worker saves, but only one where it counts."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = json.loads(os.environ["TF_CONFIG"])["task"]
with np.load(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "digits.npz")) as data:
    images, labels = data["images"], data["labels"]

tf.keras.utils.set_random_seed(7)
with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((64,)), tf.keras.layers.Dense(10, activation="softmax")]
    )
    model.compile(tf.keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
model.fit(images, labels, batch_size=64, epochs=1, verbose=0)

learnt = sum(float(np.abs(weights).sum()) for weights in model.get_weights())
print(
    f"{task['type']} {task['index']} of {strategy.num_replicas_in_sync} on {os.environ['SM_CURRENT_HOST']}: {learnt:.6f}"
)
folder = os.environ["SM_MODEL_DIR"] if task["index"] == 0 else tempfile.mkdtemp()
model.save(os.path.join(folder, "digits.keras"))
