"""The kinds of training that the documents behind this project describe: ``documents.py [--checks] CHECK,CHECK [FOLDER]``; each that holds prints ``ok CHECK``.

Each trains on two workers as that kind of script does it, on small data, and compares the weights of the workers and the loss.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import syrtos

WIDE, CLASSES, ROWS = 16, 4, 96
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(ROWS, WIDE)).astype("float32")
LABELS = np.argmax(X @ GENERATOR.normal(size=(WIDE, CLASSES)), axis=1)
Y = tf.keras.utils.to_categorical(LABELS, CLASSES)


def network() -> Any:
    tf.keras.utils.set_random_seed(0)
    layers = [
        tf.keras.layers.Dense(32, "relu", input_shape=(WIDE,)),
        tf.keras.layers.Dense(CLASSES, "softmax"),
    ]
    return tf.keras.Sequential(layers)


def compiled(model: Any, optimizer: Any = "adam") -> Any:
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
    return model


def check(model: Any, losses: list[float]) -> None:
    """The replicas are equal, and it has learnt something."""
    sums = syrtos.allgather(
        np.stack([np.float64(np.sum(weights)) for weights in model.get_weights()])[None]
    )
    np.testing.assert_array_equal(np.asarray(sums)[0], np.asarray(sums)[-1])
    assert losses[-1] < losses[0] * 0.9, losses


def fitted(model: Any, *data: Any, **how: Any) -> None:
    check(model, model.fit(*data, verbose=0, **how).history["loss"])


# -- Keras under SMDDP ---------------------------------------------------------------------------------


def plain_fit(folder: Path) -> None:
    fitted(compiled(network()), X, Y, epochs=5, batch_size=16)


def mirrored_fit(folder: Path) -> None:
    with tf.distribute.MirroredStrategy().scope():
        model = compiled(network())
    fitted(model, X, Y, epochs=5, batch_size=16)


def estimator_of_keras(folder: Path) -> None:
    from tensorflow.estimator import Estimator, EvalSpec, TrainSpec  # pyright: ignore[reportMissingImports]

    v1: Any = tf.compat.v1

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        outputs = network()(features, training=mode == "train")
        loss = tf.reduce_mean(tf.keras.losses.categorical_crossentropy(labels, outputs))
        step = (
            v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
            if mode == "train"
            else None
        )
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=step)  # pyright: ignore[reportAttributeAccessIssue]

    def reads() -> Any:
        return tf.data.Dataset.from_tensor_slices((X, Y)).repeat(5).batch(16)

    made = Estimator(model_fn=model_fn, model_dir=str(folder / "estimator"))
    result = tf.estimator.train_and_evaluate(
        made, TrainSpec(reads, max_steps=30), EvalSpec(reads, steps=2)
    )  # pyright: ignore[reportAttributeAccessIssue]
    assert result[0]["global_step"] == 30
    assert result[0]["loss"] < 1.2


# -- Keras under Horovod ---------------------------------------------------------------------------------


def horovod_fit(folder: Path) -> None:
    import horovod.tensorflow as hvd  # pyright: ignore[reportMissingImports]

    hvd.init()
    model = compiled(
        network(), hvd.DistributedOptimizer(tf.keras.optimizers.Adam(learning_rate=0.01))
    )
    fitted(model, X[hvd.rank() :: hvd.size()], Y[hvd.rank() :: hvd.size()], epochs=5, batch_size=8)
    if hvd.rank() == 0:
        model.save(folder / "model.h5")


def horovod_records(folder: Path) -> None:
    import horovod.tensorflow as hvd  # pyright: ignore[reportMissingImports]

    hvd.init()
    path = str(folder / f"train-{hvd.rank()}.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for x, y in zip(X, LABELS, strict=True):
            values = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(y)])),
            }
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()
            )

    def parsed(record: Any) -> Any:
        spec = {
            "x": tf.io.FixedLenFeature([WIDE], tf.float32),
            "y": tf.io.FixedLenFeature([], tf.int64),
        }
        found = tf.io.parse_single_example(record, spec)
        return found["x"], tf.one_hot(found["y"], CLASSES)

    data = (
        tf.data.TFRecordDataset(path)
        .map(parsed)
        .shard(hvd.size(), hvd.rank())
        .batch(8)
        .prefetch(tf.data.AUTOTUNE)
    )
    inputs = tf.keras.Input((WIDE,))
    outputs = tf.keras.layers.Dense(CLASSES, "softmax")(tf.keras.layers.Dense(32, "relu")(inputs))
    model = compiled(
        tf.keras.Model(inputs, outputs), hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01))
    )
    fitted(model, data, epochs=5)


def horovod_loop(folder: Path) -> None:
    import horovod.tensorflow as hvd  # pyright: ignore[reportMissingImports]

    hvd.init()
    for gpu in tf.config.experimental.list_physical_devices("GPU")[hvd.local_rank() :][:1]:
        tf.config.experimental.set_visible_devices(gpu, "GPU")
    with tf.device("/cpu:0"):
        model = network()
        optimizer: Any = tf.keras.optimizers.Adam(learning_rate=0.005 * hvd.size())
    losses: list[float] = []
    for step in range(30):
        rows = slice((step * 16 + 8 * hvd.rank()) % ROWS, (step * 16 + 8 * hvd.rank()) % ROWS + 8)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.keras.losses.categorical_crossentropy(Y[rows], model(X[rows], training=True))
            )
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if step == 0:
            hvd.broadcast_variables(model.variables, root_rank=0)
        losses.append(float(hvd.allreduce(loss)))
    check(model, losses)


# -- several GPUs, strategies ------------------------------------------------------------------------------


def multi_gpu_model(folder: Path) -> None:
    from keras.utils import multi_gpu_model as split  # pyright: ignore[reportAttributeAccessIssue]

    model = network()
    parallel = compiled(split(model, gpus=2))
    fitted(parallel, X, Y, epochs=5, batch_size=16)


def steps_of_a_strategy(folder: Path) -> None:
    strategy: Any = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model, optimizer = network(), tf.keras.optimizers.Adam(0.01)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.keras.losses.categorical_crossentropy(y, model(x, training=True))
            )
        gradients: Any = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    data = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    )
    losses = [
        float(
            strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step, args=(x, y)), axis=None)
        )
        for _ in range(5)
        for x, y in data
    ]
    check(model, losses)


def distributed_data_into_fit(folder: Path) -> None:
    strategy: Any = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = compiled(network())
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(ROWS, seed=0).batch(16)
    fitted(model, strategy.experimental_distribute_dataset(data), epochs=5)


def workers_of_tf_config(folder: Path) -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy: Any = tf.distribute.experimental.MultiWorkerMirroredStrategy(
        cluster_resolver=resolver
    )
    with strategy.scope():
        model = compiled(network())
    fitted(model, X, Y, epochs=5, batch_size=16)


def no_tpu(folder: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match="JAX"):
        tf.distribute.cluster_resolver.TPUClusterResolver(tpu="grpc://10.0.0.2:8470")
    assert time.monotonic() - began < 30  # else it would ask the network


if __name__ == "__main__":
    # A training job passes its hyperparameters as `--checks CHECK,CHECK`, and has a folder for what it writes.
    chosen, *rest = [word for word in sys.argv[1:] if word != "--checks"]
    for name in chosen.split(","):
        place = Path(rest[0] if rest else os.environ["SM_OUTPUT_DATA_DIR"], name)
        place.mkdir(parents=True, exist_ok=True)
        globals()[name](place)
        print("ok", name, flush=True)
