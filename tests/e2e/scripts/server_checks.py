"""Run by every worker of `syrtos run --ps 1`: ``server_checks.py CHECK,CHECK FOLDER``; each check that holds prints ``ok CHECK``.

Under TF_USE_LEGACY_KERAS=1 with Keras 2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import syrtos

keras: Any = tf.keras
X = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
QUIET: Any = 0


def make(optimizer: Any = None) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(optimizer or keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def equal_everywhere(value: Any) -> None:
    everyone = syrtos.allgather(np.asarray(value, np.float64).reshape(1, -1))
    assert (everyone == everyone[0]).all(), everyone


def strategy_and_fit(folder: Path) -> None:
    """A repeated data set, so many steps to an epoch: every step once, over all workers, and the stream goes on in the next epoch."""
    strategy: Any = tf.distribute.experimental.ParameterServerStrategy(None)
    with strategy.scope():
        model = make()
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat()
    history = model.fit(rows, steps_per_epoch=20, epochs=3, verbose=QUIET).history
    assert int(model.optimizer.iterations) == 60
    equal_everywhere(model.get_weights()[0])
    equal_everywhere(history["loss"])
    assert strategy.num_replicas_in_sync == 1


def every_sample_once(folder: Path) -> None:
    """Gradients that are the same whatever the weights are: each epoch moves each row by 1, whoever takes its batch."""
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="int32"),
            keras.layers.Embedding(len(X), 1, embeddings_initializer="zeros"),
            keras.layers.Flatten(),
        ]
    )
    model.compile(
        keras.optimizers.SGD(8.0), lambda _, predicted: predicted, steps_per_execution=3
    )  # 32 batches
    history = model.fit(
        np.arange(len(X))[:, None], Y, batch_size=8, epochs=3, verbose=QUIET
    ).history
    np.testing.assert_array_equal(model.get_weights()[0], np.full((len(X), 1), -3.0))
    assert int(model.optimizer.iterations) == 96
    equal_everywhere(history["loss"])
    assert model.evaluate(np.arange(len(X))[:, None], Y, verbose=QUIET) == -3.0


def adapted(folder: Path) -> None:
    """A layer that looks at data before training sees all of it, on every worker."""
    layer = keras.layers.Normalization()
    layer.adapt(X)
    np.testing.assert_allclose(layer.mean, X.mean(0, keepdims=True), atol=1e-6)


def unfit_optimizers(folder: Path) -> None:
    """Of Keras 2."""
    for optimizer in (keras.optimizers.legacy.SGD(0.05), keras.optimizers.Nadam(0.05)):
        with pytest.raises(syrtos.SyrtosError, match="can't apply this optimizer"):
            make(optimizer).fit(X, Y, verbose=QUIET)


def callbacks(folder: Path) -> None:
    """Decisions are taken alike, files are written once, and what they hold is what all have."""
    model, path = make(), str(folder / "best.keras")
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=1e9, patience=1)
    save = keras.callbacks.ModelCheckpoint(path)
    history = model.fit(
        X, Y, batch_size=16, epochs=9, validation_data=(X, Y), callbacks=[stop, save], verbose=QUIET
    ).history
    assert len(history["val_loss"]) == 2
    equal_everywhere(history["val_loss"])
    syrtos.barrier()
    loaded: Any = keras.models.load_model(path)
    for mine, saved in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, saved)
    assert int(loaded.optimizer.iterations) == 32


def set_between(folder: Path) -> None:
    """Weights that the script sets between two fits are where the second begins."""
    model = make(keras.optimizers.Adam(0.01))
    model.fit(X, Y, batch_size=32, verbose=QUIET)
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    model.optimizer.learning_rate = 0.0
    model.fit(X, Y, batch_size=32, verbose=QUIET)
    assert all(not w.any() for w in model.get_weights())
    assert int(model.optimizer.iterations) == 16


def data_of_unknown_length(folder: Path) -> None:
    def rows() -> Any:
        for start in range(0, 256, 8):
            yield X[start : start + 8], Y[start : start + 8]

    spec = tuple(tf.TensorSpec([None, n], tf.float32) for n in (4, 1))
    model = make()
    model.fit(tf.data.Dataset.from_generator(rows, output_signature=spec), epochs=2, verbose=QUIET)
    assert int(model.optimizer.iterations) == 64


def tables(folder: Path) -> None:
    """Rows of a table, by an optimizer that treats listed rows alone."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(50, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adagrad(0.5), "mse")
    ids = np.random.default_rng(1).integers(0, 20, size=(256, 3))
    before = model.get_weights()[0].copy()
    model.fit(ids, Y, batch_size=16, epochs=2, verbose=QUIET)
    after = model.get_weights()[0]
    assert (after[:20] != before[:20]).any(axis=1).all()
    np.testing.assert_array_equal(after[20:], before[20:])
    equal_everywhere(after)


def another_strategy(folder: Path) -> None:
    """Which one a script names makes no difference."""
    with tf.distribute.MirroredStrategy().scope():
        model = make()
    model.fit(X, Y, batch_size=16, epochs=2, verbose=QUIET)
    assert int(model.optimizer.iterations) == 32
    equal_everywhere(model.get_weights()[0])


def horovod(folder: Path) -> None:
    """It exchanges what servers should apply."""
    import horovod.tensorflow.keras as hvd  # pyright: ignore[reportMissingImports]

    with pytest.raises(syrtos.SyrtosError, match="Run it without"):
        hvd.init()


def together_only(folder: Path) -> None:
    coordinator: Any = tf.distribute.coordinator  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(syrtos.SyrtosError, match="made by one worker each"):
        coordinator.ClusterCoordinator(tf.distribute.experimental.ParameterServerStrategy(None))


def no_servers(folder: Path) -> None:
    with pytest.raises(syrtos.SyrtosError, match="syrtos run --ps 1"):
        tf.distribute.experimental.ParameterServerStrategy(None)


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        globals()[name](Path(sys.argv[2]))
        print("ok", name, flush=True)
