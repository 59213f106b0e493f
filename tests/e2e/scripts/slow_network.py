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
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    data = (x[1400:], y[1400:])
    return model.fit(
        x[:1400], y[:1400], batch_size=64, epochs=8, validation_data=data, verbose=0
    ).history["val_loss"][-1]


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


def small(callbacks: list[Any]) -> dict[str, Any]:
    """Logs of a small regression, and a sum of its weights."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(320, 6)).astype("float32")
    hidden = [
        keras.layers.Dense(32, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
    ]
    model = keras.Sequential([keras.Input((6,)), *hidden, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    given = {"batch_size": 16, "validation_split": 0.2, "verbose": 0}
    return facts(
        model,
        model.fit(x, np.tanh(x.sum(1, keepdims=True)), epochs=3, callbacks=callbacks, **given),
    )


def facts(model: keras.Model, history: Any) -> dict[str, Any]:
    weights = [float(np.abs(w).sum(dtype="float64")) for w in model.get_weights()]
    return {
        **{name: [float(v) for v in values] for name, values in history.history.items()},
        "weights": weights,
    }


# -- a model that its optimizer never changes: what it gives on workers is what it gives in one process ------------


class Largest(keras.metrics.Metric):
    """The largest number, which is no sum over the workers: each has all rows of the same value."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value", aggregation="mean")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(0.0 * predicted) + 3.0))

    def result(self) -> Any:
        return self.value * 1.0


class Counts(keras.metrics.Metric):
    """All samples, from the first epoch to the last."""

    def __init__(self) -> None:
        super().__init__(name="counts")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.value.assign_add(keras.ops.sum(keras.ops.ones_like(predicted)))

    def reset_state(self) -> None:
        """Never."""

    def result(self) -> Any:
        return self.value * 1.0


class Disturbs(keras.callbacks.Callback):
    """Does within an epoch what workers must not meet about alone."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self._x, self._found = x, []
        self._other = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        self._other.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.set_weights([weight * 1.5 for weight in self.model.get_weights()])
        self._other.fit(self._x, self._x[:, :1], batch_size=10, verbose=0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 5:
            self._found.append(float(self.model.predict(self._x[:7], verbose=0).sum()))
            self._found.append(
                self._other.evaluate(self._x[:7], self._x[:7, :1], batch_size=3, verbose=0)[0]
            )

    def on_train_end(self, logs: Any = None) -> None:
        self.model.found = self._found


def not_trained() -> dict[str, Any]:
    """101 samples in batches of 10, and one of a single sample."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(101, 6)).astype("float32")
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae", Largest(), Counts()])
    history = model.fit(x, x[:, :1], batch_size=10, epochs=3, callbacks=[Disturbs(x)], verbose=0)
    return {**facts(model, history), "within": model.found}


def own_loop() -> dict[str, Any]:
    """A loop of the script's own, with a list of callbacks, before and after a `fit`."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    losses = descend(model, x)
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0)
    losses += descend(model, x)
    return {
        "falls": bool(np.all(np.diff(losses[:8]) < 0)),
        "weights": [w.tolist() for w in model.get_weights()],
    }


def descend(model: keras.Model, x: Any) -> list[float]:
    """Eight steps of gradients that are computed by hand."""
    callbacks = keras.callbacks.CallbackList([], model=model)
    callbacks.on_train_begin()
    losses = []
    for step in range(8):
        callbacks.on_train_batch_begin(step)
        kernel, bias = model.get_weights()
        wrong = x @ kernel + bias - x[:, :1]
        grads = [2 * x.T @ wrong / len(x), 2 * wrong.mean(0)]
        model.optimizer.apply(
            [keras.ops.convert_to_tensor(g) for g in grads], model.trainable_variables
        )
        losses.append(float((wrong**2).mean()))
        callbacks.on_train_batch_end(step, {})
    callbacks.on_train_end()
    return losses


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
        result = small([Killed(Path(more[0]))])
    elif mode == "not_trained":
        result = not_trained()
    elif mode == "own_loop":
        result = own_loop()
    elif mode == "stopped":
        small([Stops()])
        result = Stops.trained
    elif mode == "on_batch":
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        result = float(model.train_on_batch(np.ones((4, 6)), np.ones((4, 1))))
    else:
        model = keras.Sequential(
            [keras.Input((1000,)), keras.layers.Dense(1000), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        model.fit(np.ones((640, 1000), "float32"), np.ones((640, 1)), batch_size=20, verbose=0)
        result = None
    if os.environ.get("PMI_RANK", "0") == "0":
        print(json.dumps(result))
    elif mode == "own_loop":
        print(json.dumps(result), file=sys.stderr)


if __name__ == "__main__":
    main()
