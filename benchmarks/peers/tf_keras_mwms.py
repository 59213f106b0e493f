"""Measures a training step of Keras 2 (`tf_keras`) `fit` under MultiWorkerMirroredStrategy.

Timed on rank 0 from the end of one batch to the end of the next, and compared with the same workers
training side by side without a strategy.
"""

from contextlib import nullcontext

import common
import models
import mwms
import tensorflow as tf
import tf_keras


def train(worker: common.Worker, kind: models.Model, steps: int) -> list[float]:
    strategy = mwms.join(worker) if worker.exchange else None
    mwms.one_thread()
    with strategy.scope() if strategy else nullcontext():
        model = kind.build(tf_keras)
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.SGD(models.LEARNING_RATE), loss)
    clock = common.batch_clock(tf_keras)
    data = batches(kind, kind.batch * (worker.size if strategy else 1))
    worker.meet()
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return clock.ends


def batches(kind: models.Model, size: int) -> tf.data.Dataset:
    """The same batch for ever; the strategy cuts a worker's part out of the global batch."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensors(kind.data(size)).repeat().with_options(options)


if __name__ == "__main__":
    common.step_peer("tf_keras_mwms", train)
