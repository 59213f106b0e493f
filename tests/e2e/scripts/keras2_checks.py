"""Run by every worker of `syrtos run` under TF_USE_LEGACY_KERAS=1: ``keras2_checks.py CHECK,CHECK FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import numpy as np
import pytest
import tensorflow as tf

from syrtos.errors import ConfigurationError

keras: Any = tf.keras
ROUNDS, ROWS = 2, 16


def data(rank: int) -> Any:
    x = np.random.default_rng(rank).normal(size=(ROWS, 3)).astype("float32")
    return x, x.sum(1, keepdims=True) * 2


def unshaped(folder: Path) -> None:
    """A model without an input shape has its weights before the first step, and the root's are broadcast then."""
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    model.fit(
        *data(hvd.rank()), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(1)]
    )
    both = hvd.allgather(model.get_weights()[0][None])
    np.testing.assert_array_equal(both[0], both[1])
    keras.utils.set_random_seed(1)
    again = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    again.build((None, 3))
    np.testing.assert_array_equal(both[0], again.get_weights()[0])


def table_among_weights(folder: Path) -> None:
    """A lookup layer keeps a table among its model's weights, which has neither a name nor a shape."""
    words = tf.constant([["a b"], ["b c"], ["a"], ["c c"]])
    text = keras.layers.TextVectorization(output_mode="tf_idf")
    text.adapt(words)
    model = keras.Sequential([keras.Input((1,), dtype=tf.string), text, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(words, tf.ones((4, 1)), batch_size=2, verbose=0)
    # The function by which the layer was adapted is saved with it.
    place = folder / f"saved by {hvd.rank()}"
    model.save(place)
    assert keras.models.load_model(place).predict(words, verbose=0).shape == (4, 1)


def accumulates(folder: Path) -> None:
    """`backward_passes_per_step=2`, against the same by hand."""
    for make in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        for average in (False, True):
            optimizer = hvd.DistributedOptimizer(
                make(0.1, momentum=0.9),
                backward_passes_per_step=2,
                average_aggregated_gradients=average,
            )
            model = keras.Sequential(
                [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
            )
            model.compile(optimizer, "mse")
            model.fit(*data(hvd.rank()), batch_size=4, epochs=ROUNDS, verbose=0, shuffle=False)
            weight, velocity = np.ones((3, 1), "float32"), np.zeros((3, 1), "float32")
            for _ in range(ROUNDS):
                for first in (0, 8):
                    passes = [
                        _gradient(weight, r, b)
                        for r in range(hvd.size())
                        for b in (first, first + 4)
                    ]
                    velocity = 0.9 * velocity - 0.1 * np.sum(passes, 0) / hvd.size() / (
                        2 if average else 1
                    )
                    weight = weight + velocity
            np.testing.assert_allclose(model.get_weights()[0], weight, rtol=1e-5)
            assert int(optimizer.iterations) == ROUNDS * ROWS // 4


def corrects_momentum(folder: Path) -> None:
    """When the rate doubles, so does the velocity (Goyal et al. 2017, section 2.1)."""
    for make in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        for correction in (False, True):
            model = keras.Sequential(
                [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
            )
            model.compile(hvd.DistributedOptimizer(make(0.1, momentum=0.9)), "mse")
            schedule = hvd.callbacks.LearningRateScheduleCallback(
                0.1, 2.0, momentum_correction=correction
            )
            model.fit(*data(hvd.rank()), batch_size=ROWS, epochs=2, verbose=0, callbacks=[schedule])
            weight, velocity = np.ones((3, 1), "float32"), np.zeros((3, 1), "float32")
            for rate, scale in ((0.1, 1.0), (0.2, 2.0 if correction else 1.0)):
                gradient = np.mean([_gradient(weight, r, 0, ROWS) for r in range(hvd.size())], 0)
                velocity = 0.9 * velocity * scale - rate * gradient
                weight = weight + velocity
            np.testing.assert_allclose(model.get_weights()[0], weight, rtol=1e-5)


def computes(folder: Path) -> None:
    """`compute_gradients` gives reduced gradients: they are clipped then, and applied as they are."""
    for make in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        for op, total in ((hvd.Average, 2.0), (hvd.Sum, 4.0)):
            optimizer = hvd.DistributedOptimizer(hvd.DistributedOptimizer(make(1.0), op=op), op=op)
            shared, own = tf.Variable(0.0), tf.Variable(0.0)
            optimizer.register_local_var(own)

            def step(
                optimizer: Any = optimizer,
                shared: Any = shared,
                own: Any = own,
                total: float = total,
            ) -> None:
                with tf.GradientTape() as tape:
                    loss = (shared + own) * (1.0 + 2.0 * hvd.rank())  # gradients 1 and 3
                found, mine = optimizer.compute_gradients(loss, [shared, own], tape=tape)
                tf.debugging.assert_near(found[0], total)
                tf.debugging.assert_near(mine[0], 0.5 + hvd.rank())
                optimizer.apply_gradients([(tf.minimum(found[0], 1.5), shared), mine])

            step()
            tf.function(step)()
            np.testing.assert_allclose(
                [shared.numpy(), own.numpy()], [-3.0, -1.0 - 2.0 * hvd.rank()]
            )
            optimizer.minimize(lambda s=shared: s * (1.0 + 2.0 * hvd.rank()), [shared])
            optimizer.apply_gradients([(tf.constant(1.0 + 2.0 * hvd.rank()), shared)])
            np.testing.assert_allclose(shared.numpy(), -3.0 - 2 * total)


def computes_elsewhere(folder: Path) -> None:
    """Where one function computes gradients and another applies them, a mean is the same taken twice; a sum is an error."""
    for op in (hvd.Average, hvd.Sum):
        optimizer, weight = (
            hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op),
            tf.Variable(0.0),
        )
        compute = tf.function(
            lambda o=optimizer, w=weight: o.compute_gradients(
                lambda: w * (1.0 + 2.0 * hvd.rank()), [w]
            )[0][0]
        )
        if op is hvd.Sum:
            with pytest.raises(ConfigurationError, match="in one function"):
                optimizer.apply_gradients([(compute(), weight)])
        else:
            optimizer.apply_gradients([(compute(), weight)])
            np.testing.assert_allclose(weight.numpy(), -2.0)


def _gradient(weight: Any, rank: int, first: int, rows: int = 4) -> Any:
    x, y = (each[first : first + rows] for each in data(rank))
    return 2 * x.T @ (x @ weight - y) / rows


if __name__ == "__main__":
    names, where = sys.argv[1].split(","), Path(sys.argv[2])
    hvd.init()
    for name in names:
        globals()[name](where)
        print(f"ok {name}", flush=True)
