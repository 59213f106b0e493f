"""Measures a training step of Keras 3's `fit` on JAX under its own multi-process DataParallel, through gloo.

Timed on rank 0 from the end of one batch to the end of the next, and compared with the same workers
training side by side without a distribution. Keras gives each process the rows that it brings itself.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import common
import jax_gloo
import models


def train(worker: common.Worker, kind: models.Model, steps: int) -> list[float]:
    if worker.exchange:
        jax_gloo.join(worker)
    import keras

    if worker.exchange:
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(auto_shard_dataset=False)
        )
    keras.utils.set_random_seed(0)  # Keras expects equal weights of all processes
    model = kind.build(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(models.LEARNING_RATE), loss)
    clock, batch = common.batch_clock(keras), kind.data(kind.batch)
    worker.meet()
    model.fit((batch for _ in range(steps)), steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return clock.ends


if __name__ == "__main__":
    common.step_peer("keras_jax", train)
