"""An Estimator as they were written in 2018: a graph in a ``model_fn``, trained and evaluated in turns.

syrtos run -n 2 examples/dialects/estimator.py
"""

import tempfile

import tensorflow as tf
from sklearn.datasets import load_digits

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")


def cnn_model_fn(features, labels, mode):
    net = tf.compat.v1.layers.conv2d(
        features["x"], filters=32, kernel_size=3, activation=tf.nn.relu
    )
    net = tf.compat.v1.layers.flatten(net)
    net = tf.compat.v1.layers.dense(net, units=64, activation=tf.nn.relu)
    net = tf.compat.v1.layers.dropout(net, rate=0.2, training=mode == tf.estimator.ModeKeys.TRAIN)
    logits = tf.compat.v1.layers.dense(net, units=10)
    predictions = {"classes": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions)

    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.compat.v1.train.AdamOptimizer(learning_rate=0.002)
        train_op = optimizer.minimize(loss=loss, global_step=tf.compat.v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)

    metrics = {
        "accuracy": tf.compat.v1.metrics.accuracy(labels=labels, predictions=predictions["classes"])
    }
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops=metrics)


def serving_input_receiver_fn():
    x = tf.compat.v1.placeholder(tf.float32, [None, 8, 8, 1], name="x")
    return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})


def train_input_fn():
    dataset = tf.data.Dataset.from_tensor_slices(({"x": images[:1437]}, labels[:1437]))
    return dataset.shuffle(1437).repeat().batch(64).prefetch(1)


eval_input_fn = tf.compat.v1.estimator.inputs.numpy_input_fn(
    x={"x": images[1437:]}, y=labels[1437:], num_epochs=1, shuffle=False
)

classifier = tf.estimator.Estimator(
    model_fn=cnn_model_fn,
    config=tf.estimator.RunConfig(
        model_dir=tempfile.mkdtemp(), tf_random_seed=1, save_checkpoints_steps=150
    ),
)
exporter = tf.estimator.BestExporter(
    serving_input_receiver_fn=serving_input_receiver_fn, exports_to_keep=1
)
results, exported = tf.estimator.train_and_evaluate(
    classifier,
    tf.estimator.TrainSpec(input_fn=train_input_fn, max_steps=450),
    tf.estimator.EvalSpec(
        input_fn=eval_input_fn, steps=None, exporters=exporter, start_delay_secs=0, throttle_secs=0
    ),
)
print(
    f"exported to {exported[0].decode() if exported[0] else 'nowhere: an earlier one was better'}"
)
print(f"test accuracy: {results['accuracy']:.4f}")
