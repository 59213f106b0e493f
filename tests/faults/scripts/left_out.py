"""Trains on data of which one batch is not finite, and on the same data without it, and writes down how far the two differ: `left_out.py CASE ...`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

X = np.random.default_rng(0).random((96, 4), np.float32)
Y = X.sum(axis=1, keepdims=True)
BATCH, WRONG = 16, 2
QUIET: Any = 0
REST = np.r_[: BATCH * WRONG, BATCH * (WRONG + 1) : len(X)]


def spoilt(rank: int) -> Any:
    """The data, with a NaN in one row of the wrong batch, in the share of ``rank``."""
    x = X.copy()
    x[BATCH * WRONG + rank * BATCH // 2 + 1, 0] = np.nan
    return x


class Own(keras.Model):
    """With a `train_step` of the script's own."""

    def train_step(self, *args: Any) -> Any:
        """Calls Keras's."""
        return super().train_step(*args)


def trained(
    x: Any,
    y: Any,
    kind: type[keras.Model] = keras.Model,
    optimizer: Any = "adam",
    epochs: int = 2,
    **options: Any,
) -> tuple[Any, Any, Any]:
    """Weights, the optimizer's state, and the history of two epochs."""
    keras.utils.set_random_seed(0)
    fit = {
        "epochs": epochs,
        "shuffle": False,
        "batch_size": BATCH,
        "verbose": QUIET,
        "validation_data": (X, Y),
    }
    inputs = keras.Input(x.shape[1:])
    found = keras.layers.Dense(8, activation="relu")(inputs)
    found = keras.layers.Dropout(0.3, seed=1)(keras.layers.BatchNormalization()(found))
    model = kind(inputs, keras.layers.Dense(1)(found))
    optimizer = keras.optimizers.get(optimizer() if callable(optimizer) else optimizer)
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    history = model.fit(x, y, callbacks=[keras.callbacks.TerminateOnNaN()], **fit).history
    return model.get_weights(), [np.asarray(v.numpy()) for v in model.optimizer.variables], history


def furthest(one: Any, other: Any) -> float:
    """The largest difference of weights and of the optimizer's state."""
    pairs = zip([*one[0], *one[1]], [*other[0], *other[1]], strict=True)
    return max(float(np.abs(np.asarray(a, np.float64) - b).max()) for a, b in pairs)


def difference(rank: int, **options: Any) -> str:
    """The largest, of weights, the optimizer's state and the history."""
    wrong, right = trained(spoilt(rank), Y, **options), trained(X[REST], Y[REST], **options)
    worst = furthest(wrong, right)
    assert wrong[2].keys() == right[2].keys()
    for name, values in right[2].items():
        assert len(wrong[2][name]) == len(values) == 2, f"{name}: {wrong[2][name]}"
        worst = max(worst, float(np.abs(np.subtract(wrong[2][name], values)).max()))
    return told_of(worst)


def told_of(worst: float) -> str:
    """Numbers are the same, but for a compiler's choices."""
    return "the same" if worst < 1e-6 else f"DIFFERS by {worst}"


def accumulating() -> Any:
    """An update of two batches."""
    return keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=2)


def decaying() -> Any:
    """What else an update changes: weight decay, an average of the weights, a schedule."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
    return keras.optimizers.AdamW(
        rate, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3, clipnorm=1.0
    )


def always_wrong() -> str:
    """All batches are."""
    trained(np.full_like(X, np.nan)[np.arange(96 * 3) % 96], np.tile(Y, (3, 1)))
    return "trained"


CASES: dict[str, Any] = {
    "plain": lambda: difference(1),
    "rank_0": lambda: difference(0, optimizer="sgd"),
    "own_step": lambda: difference(1, kind=Own),
    "eagerly": lambda: difference(1, run_eagerly=True),
    "accumulated": lambda: difference(1, optimizer=accumulating),
    "decay": lambda: difference(0, optimizer=decaying),
    "several_steps": lambda: difference(1, steps_per_execution=3),
    "always_wrong": always_wrong,
}

told: dict[str, str] = {}
for case in sys.argv[1:]:
    keras.backend.clear_session()
    try:
        told[case] = CASES[case]()
    except Exception as error:
        told[case] = f"{type(error).__name__}: {error}"
Path(f"told-{os.environ.get('PMI_RANK', 0)}.json").write_text(json.dumps(told))
