"""The native API with TensorFlow tensors, checked by every worker, eagerly and inside `tf.function`."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf

import syrtos
import syrtos.keras
from syrtos import ReduceOp
from syrtos.errors import ConfigurationError


def exchanges() -> str:
    """Values and static shapes, both ways of running."""
    rank, size = syrtos.rank(), syrtos.size()

    def calls(x: Any) -> list[Any]:
        rows, received = syrtos.alltoall(tf.repeat(tf.range(size), 2))
        return [
            syrtos.allreduce(x), syrtos.allreduce(x, ReduceOp.MEAN), syrtos.allreduce(x, ReduceOp.MAX), syrtos.allgather(x[: rank + 1]),
            syrtos.broadcast(x, root=size - 1), syrtos.reducescatter(x), rows, received,
        ]  # fmt: skip

    x = tf.fill([4, 3], float(rank + 1))
    total = sum(range(1, size + 1))
    for run in (calls, tf.function(calls)):
        added, mean, most, gathered, sent, scattered, rows, received = run(x)
        np.testing.assert_allclose(added, np.full((4, 3), total))
        np.testing.assert_allclose(mean, np.full((4, 3), total / size))
        np.testing.assert_allclose(most, np.full((4, 3), size))
        assert gathered.shape == (total, 3)
        np.testing.assert_allclose(sent, np.full((4, 3), size))
        assert scattered.shape[0] in (4 // size, 4 // size + 1)
        np.testing.assert_array_equal(rows, np.full(2 * size, rank))
        np.testing.assert_array_equal(received, np.full(size, 2))
    return "ok"


def slices() -> str:
    """TensorFlow writes to the memory of a slice that nothing else needs: it must be this worker's own."""
    rank, size, half = syrtos.rank(), syrtos.size(), 100_000

    @tf.function
    def sliced(x: Any) -> Any:
        total = syrtos.allreduce(x)
        first, second = tf.split(total, 2)
        return total[:half] * 2.0, first * 3.0, second + 1.0

    for step in range(20):
        total = float(sum(step + other for other in range(size)))
        doubled, first, second = sliced(tf.fill([2 * half], float(step + rank)))
        assert (doubled.numpy() == 2 * total).all()
        assert (first.numpy() == 3 * total).all()
        assert (second.numpy() == total + 1).all()
    return "ok"


def gradients() -> str:
    """The gradient of a sum over workers is the sum of their gradients."""
    rank, size = syrtos.rank(), syrtos.size()
    x = tf.Variable(tf.ones([3]))
    tape: Any = tf.GradientTape(persistent=True)
    with tape:
        reduced = tf.reduce_sum(syrtos.allreduce(x * 1.0) * float(rank + 1))
        gathered = tf.reduce_sum(syrtos.allgather(x * 1.0) * float(rank + 1))
        sent = tf.reduce_sum(syrtos.broadcast(x * 1.0, root=1) * float(rank + 1))
    total = sum(range(1, size + 1))
    np.testing.assert_allclose(tape.gradient(reduced, x), np.full(3, total))
    np.testing.assert_allclose(tape.gradient(gathered, x), np.full(3, total))
    np.testing.assert_allclose(tape.gradient(sent, x), np.full(3, total if rank == 1 else 0))
    return "ok"


def loops() -> str:
    """Three ways to train by hand on a worker's own batches end with the weights of one process on all of them."""
    x = np.random.default_rng(0).normal(size=(syrtos.size() * 8, 5)).astype("float32")
    mine = x[syrtos.rank() :: syrtos.size()]
    for build in (_with_optimizer, _with_tape):
        model, step = build()
        for _ in range(4):
            step(tf.constant(mine))
        alone, plain = _model(), keras.optimizers.SGD(0.1, global_clipnorm=0.3)
        for _ in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(alone(x)))
            plain.apply_gradients(
                zip(
                    tape.gradient(loss, alone.trainable_variables),
                    alone.trainable_variables,
                    strict=True,
                )
            )
        np.testing.assert_allclose(model.get_weights()[0], alone.get_weights()[0], rtol=1e-5)
    return "ok"


def _model() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(3)])


def _with_optimizer() -> Any:
    model = _model()
    model.layers[0].kernel.assign_add(
        tf.fill([5, 3], float(syrtos.rank()))
    )  # rank 0's weights are broadcast
    optimizer = syrtos.keras.DistributedOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=0.3))
    assert type(optimizer) is keras.optimizers.SGD
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        optimizer.apply_gradients(
            zip(
                tape.gradient(loss, model.trainable_variables),
                model.trainable_variables,
                strict=True,
            )
        )

    return model, step


def _with_tape() -> Any:
    model, optimizer = _model(), keras.optimizers.SGD(0.1, global_clipnorm=0.3)
    model.layers[0].kernel.assign_add(tf.fill([5, 3], float(syrtos.rank())))
    syrtos.keras.broadcast_variables(model.variables)

    def step(x: Any) -> None:
        with syrtos.keras.DistributedGradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    return model, step


def process_sets() -> str:
    """Subgroups exchange among themselves; who is not in one is told."""
    rank, size = syrtos.rank(), syrtos.size()
    odd = syrtos.process_set(list(range(1, size, 2)))
    if odd.included:
        assert odd.rank() == rank // 2
        np.testing.assert_allclose(
            syrtos.allreduce(tf.ones([2]), process_set=odd), np.full(2, odd.size())
        )
        assert syrtos.allgather_object(rank, process_set=odd) == list(range(1, size, 2))
    else:
        with pytest.raises(ConfigurationError, match="no member"):
            syrtos.allreduce(tf.ones([2]), process_set=odd)
    with pytest.raises(ConfigurationError, match="different ranks"):
        syrtos.process_set([0, 0])
    syrtos.barrier()
    return "ok"


def many_process_sets() -> str:
    """Workers outside of a set hold nothing of it: MPI has some 2000 communicators to give."""
    for _ in range(2100):
        syrtos.process_set([0]).close()
    return "ok"
