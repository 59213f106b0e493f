"""What is trained over a slow network: each mode prints its results as a line of JSON."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits


def digits(seed: int) -> float:
    """Validation loss of a small network."""
    keras.utils.set_random_seed(seed)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    data = (x[1400:], y[1400:])
    return model.fit(x[:1400], y[:1400], batch_size=64, epochs=8, validation_data=data, verbose=0).history["val_loss"][
        -1
    ]


class Killed(keras.callbacks.Callback):
    """Ends a worker in the middle of an epoch, once."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self._mark, self._batches = mark, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if self._batches == 27 and os.environ["PMI_RANK"] == "1" and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def small(rate: float, callbacks: list[Any], samples: int = 320, **given: Any) -> dict[str, Any]:
    """Logs of a small regression, and a sum of its weights."""
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    x = random.normal(size=(samples, 6)).astype("float32")
    y = np.tanh(x.sum(1, keepdims=True))
    hidden = [keras.layers.Dense(32, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
    model = keras.Sequential([keras.Input((6,)), *(hidden if rate else hidden[:1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(rate) if rate else keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    found = model.fit(x, y, epochs=3, callbacks=callbacks, validation_split=0.2, verbose=0, **given).history
    weights = [float(np.abs(w).sum(dtype="float64")) for w in model.get_weights()]
    return {**{name: [float(v) for v in values] for name, values in found.items()}, "weights": weights}


class Evaluates(keras.callbacks.Callback):
    """Within an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 5:
            x = np.ones((7, 6), "float32")
            self.model.evaluate(x, x[:, :1], batch_size=3, verbose=0)


class Stops(keras.callbacks.Callback):
    """After ten batches."""

    trained = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        Stops.trained += 1
        if Stops.trained == 10:
            self.model.stop_training = True


def main() -> None:
    mode, *more = sys.argv[1:]
    if mode == "digits":
        result: Any = [digits(seed) for seed in range(3)]
    elif mode == "killed":
        result = small(0.01, [Killed(Path(more[0]))], batch_size=16)
    elif mode == "not_trained":  # batches of 10, and one of a single sample
        result = small(0.0, [Evaluates()], samples=101, batch_size=10)
    elif mode == "stopped":
        small(0.01, [Stops()], batch_size=16)
        result = Stops.trained
    elif mode == "on_batch":
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        result = float(model.train_on_batch(np.ones((4, 6)), np.ones((4, 1))))
    else:
        model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((640, 1000), "float32"), np.ones((640, 1)), batch_size=20, verbose=0)
        result = None
    if os.environ.get("PMI_RANK", "0") == "0":
        print(json.dumps(result))


if __name__ == "__main__":
    main()
