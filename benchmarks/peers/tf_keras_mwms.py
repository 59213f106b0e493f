"""Measures a training step of Keras 2 (`tf_keras`) `fit` under MultiWorkerMirroredStrategy.

Timed on rank 0 from the end of one batch to the end of the next, and compared with the same workers
training side by side without a strategy. The model is the one of `mlp`.
"""

import time
from contextlib import nullcontext

import common
import mlp
import mwms
import numpy as np
import tensorflow as tf
import tf_keras


def train(worker: common.Worker, steps: int) -> list[float]:
    strategy = mwms.join(worker) if worker.exchange else None
    mwms.one_thread()
    with strategy.scope() if strategy else nullcontext():
        model = build_model()
    clock = Clock()
    data = batches(mlp.BATCH_PER_WORKER * (worker.size if strategy else 1))
    worker.meet()
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[clock])  # pyright: ignore[reportArgumentType]
    return clock.ends


def build_model() -> tf_keras.Model:
    layers = [tf_keras.layers.Dense(width, activation="relu") for width in mlp.HIDDEN_WIDTHS]
    layers.append(tf_keras.layers.Dense(mlp.CLASSES))
    model = tf_keras.Sequential([tf_keras.Input([mlp.INPUT_WIDTH]), *layers])
    model.compile(
        tf_keras.optimizers.SGD(mlp.LEARNING_RATE),
        tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def batches(size: int) -> tf.data.Dataset:
    """The same batch for ever; the strategy cuts a worker's part out of the global batch."""
    random = np.random.default_rng(0)
    images = random.random((size, mlp.INPUT_WIDTH), np.float32)
    labels = random.integers(mlp.CLASSES, size=size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensors((images, labels)).repeat().with_options(options)


class Clock(tf_keras.callbacks.Callback):
    """Notes when each batch ended. Asking for logs as numbers makes `fit` wait for the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.ends.append(time.perf_counter())


if __name__ == "__main__":
    common.step_peer("tf_keras_mwms", train)
