"""Trains on numbers that are not finite, and writes down how each `fit` ended: `not_finite.py CASE ...`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import syrtos.data

X = np.random.default_rng(0).random((64, 4), np.float32)
Y = X.sum(axis=1, keepdims=True)
QUIET: Any = 0


def fit(
    x: Any, *layers: keras.Layer, y: Any = Y, optimizer: Any = "adam", **options: Any
) -> keras.Model:
    """Four batches of 16 rows, of which each worker has 8, in order."""
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
    model.compile(optimizer, "mse", **options)
    try:
        model.fit(x, y, batch_size=16, shuffle=False, verbose=QUIET)
    finally:
        assert all(np.isfinite(value).all() for value in model.get_weights()), (
            "weights were damaged"
        )
    return model


def spoilt(row: int) -> Any:
    """The data, with a NaN in one row."""
    x = X.copy()
    x[row, 0] = np.nan
    return x


def dense(units: int = 1) -> keras.Layer:
    """A layer with a name."""
    return keras.layers.Dense(units, name="dense")


def on_rank_1() -> None:
    """Row 44 is in the third batch, in rank 1's share."""
    fit(spoilt(44), dense())


def eagerly() -> None:
    """Without a graph."""
    fit(spoilt(2), dense(), run_eagerly=True)


def on_both() -> None:
    """In the sum of all shares."""
    x = spoilt(3)
    x[12] = np.inf
    fit(x, dense())


def rows() -> None:
    """Gradients that list rows."""
    y = Y.copy()
    y[20] = np.nan
    fit(
        np.tile(np.arange(4), (64, 1)),
        keras.layers.Embedding(8, 2, name="rows"),
        keras.layers.Flatten(),
        dense(),
        y=y,
    )


def accumulated() -> None:
    """One update of two batches."""
    fit(spoilt(20), dense(), optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))


def without_gradient() -> None:
    """One variable has none, and is left out."""
    model = keras.Sequential([keras.Input((4,)), Unused(), dense()])
    model.compile("sgd", "mse")
    model.fit(spoilt(44), Y, batch_size=16, shuffle=False, verbose=QUIET)


class Unused(keras.layers.Layer):
    """A layer with a weight that nothing depends on."""

    def build(self, shape: Any) -> None:
        """Makes it."""
        self.add_weight(shape=(2,), name="unused")

    def call(self, x: Any) -> Any:
        """Nothing."""
        return x


def few_rows() -> None:
    """The second batch has one row: one worker has none, and computes with a copy."""
    fit(spoilt(16)[:17], dense(), y=Y[:17])


def planned() -> None:
    """Records are known, each by its row."""
    model = keras.Sequential([keras.Input((4,)), dense()])
    model.compile("sgd", "mse")
    model.fit(syrtos.data.from_arrays(spoilt(44), Y, batch_size=16), verbose=QUIET)


def scaled() -> None:
    """A scale of the loss that is too large is made smaller, and its gradients are infinite on purpose."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=2.0**120, dynamic_growth_steps=1000
    )
    layer = keras.layers.Dense(1, dtype="mixed_float16")
    model = fit(X, layer, optimizer=optimizer)
    assert int(model.optimizer.inner_optimizer.iterations) == 0, "no update was left out"


def finite() -> None:
    """Nothing wrong."""
    fit(X, dense())


told: dict[str, str] = {}
for case in sys.argv[1:]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    try:
        globals()[case]()
        told[case] = "trained"
    except Exception as error:
        told[case] = f"{type(error).__name__}: {error}"
Path(f"told-{os.environ['PMI_RANK']}.json").write_text(json.dumps(told))
