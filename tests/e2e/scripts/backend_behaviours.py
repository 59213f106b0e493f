"""What a user expects of a run on any backend of Keras, checked from inside it by every worker: ``syrtos run -n 2 ..._behaviours.py CHECKS FOLDER``.

A script for each backend has its own checks, and calls `main`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import syrtos.data
from syrtos.comm import world
from syrtos.errors import DataError, DivergenceError

FOLDER = Path(sys.argv[2])
COMM = world.current().comm


def data(samples: int = 107) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 8)).astype("float32")
    return x, x[:, :1] * 2 + np.sin(x[:, 1:2])


def model(*layers: Any) -> Any:
    built = keras.Sequential([keras.layers.Input((8,)), *layers, keras.layers.Dense(1)])
    built.compile(keras.optimizers.Adam(1e-2, clipnorm=0.5), "mse", metrics=["mae"])
    return built


def equal_everywhere(values: Any) -> bool:
    everyone = COMM.allgather(np.asarray(values, np.float64).reshape(1, -1))
    return bool((everyone == everyone[0]).all())


def used(built: Any) -> dict[str, Any]:
    """What all methods of a model give: uneven and single rows, validation, weights, predictions, methods for one batch."""
    x, y = data()
    history = built.fit(x, y, batch_size=16, epochs=3, validation_split=0.25, verbose=0).history
    again = built.fit(
        x[:33], y[:33], batch_size=16, verbose=0, sample_weight=np.linspace(0.1, 2, 33)
    ).history
    found = {f"log {name}": values for name, values in history.items()} | {"again": again["loss"]}
    found["evaluated"] = built.evaluate(x, y, batch_size=16, verbose=0)
    found["predicted"] = built.predict(x, batch_size=16, verbose=0)
    found["on batch"] = [
        *map(float, built.train_on_batch(x[:5], y[:5])),
        *map(float, built.test_on_batch(x[:1], y[:1])),
    ]
    found["predicted on batch"] = built.predict_on_batch(x[:3])
    return found


def written(name: str, built: Any, found: dict[str, Any]) -> None:
    """Results that all workers have, to be compared with one process's."""
    found = found | {f"weight {k}": weight for k, weight in enumerate(built.get_weights())}
    assert all(equal_everywhere(values) for values in found.values())
    if COMM.rank == 0:
        np.savez(FOLDER / f"{name}.npz", **{key: np.asarray(value) for key, value in found.items()})


def generators_and_steps() -> None:
    x, y = data(60)

    def batches() -> Iterator[Any]:
        while True:
            for k in range(0, 60, 9):
                yield x[k : k + 9], y[k : k + 9]

    built = model()
    if keras.backend.backend() != "torch":  # which has no such thing
        built.compile("adam", "mse", steps_per_execution=3)
    history = built.fit(batches(), steps_per_epoch=7, epochs=2, verbose=0).history
    assert equal_everywhere(history["loss"])


def planned_data() -> None:
    """An order of `syrtos.data` is that of the plain arrays where it is not shuffled, and equal on all workers where it is."""
    x, y = data(60)
    losses = []
    for batches in ((x, y), syrtos.data.from_arrays(x, y, batch_size=9)):
        keras.utils.set_random_seed(7)
        given = (
            {"x": batches[0], "y": batches[1], "batch_size": 9}
            if isinstance(batches, tuple)
            else {"x": batches}
        )
        losses.append(model().fit(**given, shuffle=False, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    shuffled = syrtos.data.from_arrays(x, y, batch_size=9, shuffle=True, seed=1)
    assert equal_everywhere(model().fit(shuffled, epochs=2, verbose=0).history["loss"])


def different_weights() -> None:
    """`evaluate` before any `fit` uses rank 0's; after one, unequal weights are an error."""
    built = model()
    built.layers[-1].bias.assign([float(COMM.rank)])
    predicted = built.predict(np.zeros((3, 8), "float32"), verbose=0)
    np.testing.assert_array_equal(predicted, np.zeros((3, 1)))
    built.fit(*data(20), verbose=0)
    built.layers[-1].bias.assign([float(COMM.rank)])
    with pytest.raises(DivergenceError, match="bias"):
        built.evaluate(*data(20), verbose=0)


def different_data() -> None:
    x, y = data(40)
    with pytest.raises(DataError, match="different data"):
        model().fit(x + COMM.rank, y, verbose=0)
    with pytest.raises(DataError, match="different lengths"):
        model().fit(x[: 40 - 32 * COMM.rank], y[: 40 - 32 * COMM.rank], batch_size=8, verbose=0)
    with pytest.raises(DataError, match=r"different (shapes|data)"):
        model().train_on_batch(x[: 4 + COMM.rank], y[: 4 + COMM.rank])
    with pytest.raises(DataError, match="different data"):
        model().train_on_batch(x[:4] + COMM.rank, y[:4])


def resumed_with_accumulation() -> None:
    """Gradients in the making belong to what is restored."""
    x, y = data(64)

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    def built() -> Any:
        keras.utils.set_random_seed(7)
        made = model()
        made.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), "mse")
        return made

    def fit(made: Any, *callbacks: Any, **options: Any) -> Any:
        made.fit(
            x,
            y,
            batch_size=16,
            epochs=2,
            shuffle=False,
            verbose=0,
            callbacks=list(callbacks),
            **options,
        )
        return made

    backup, midway = str(FOLDER / "accumulated"), FOLDER / "midway.keras"
    with pytest.raises(KeyboardInterrupt):
        fit(
            built(),
            keras.callbacks.BackupAndRestore(backup),
            keras.callbacks.ModelCheckpoint(str(midway), save_freq=2),
            Stop(),
        )
    resumed, whole = fit(built(), keras.callbacks.BackupAndRestore(backup)), fit(built())
    np.testing.assert_allclose(
        resumed.get_weights()[0], whole.get_weights()[0], rtol=1e-5, atol=1e-6
    )
    COMM.barrier()
    loaded = keras.saving.load_model(midway)  # after 4 of 8 steps, with one in the making
    assert loaded.optimizer._iterations == 4
    fit(loaded, initial_epoch=1)
    np.testing.assert_allclose(
        loaded.get_weights()[0], whole.get_weights()[0], rtol=1e-5, atol=1e-6
    )


def warm_up() -> None:
    """``--scale-lr linear --warmup-epochs 2``: the rate of each step is used, not only that of each epoch."""
    x, y = data(64)
    first, second = model(), model()
    second.set_weights(first.get_weights())
    for each in (first, second):
        each.compile(keras.optimizers.SGD(0.02), "mse")
    first.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    for step in range(12):
        second.optimizer.learning_rate = 0.02 * (1 + (COMM.size - 1) * min(step / 8, 1.0))
        second.train_on_batch(x[step % 4 * 16 :][:16], y[step % 4 * 16 :][:16])
    np.testing.assert_allclose(
        first.get_weights()[0], second.get_weights()[0], rtol=1e-5, atol=1e-6
    )


def files() -> None:
    """Written once; a run that goes on has the state of the one that was interrupted."""
    best, backup = FOLDER / "best.keras", FOLDER / "backup"

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    written = [
        keras.callbacks.ModelCheckpoint(str(best)),
        keras.callbacks.CSVLogger(str(FOLDER / "log.csv")),
    ]
    first = model(keras.layers.Dropout(0.5))
    with pytest.raises(KeyboardInterrupt):
        first.fit(
            *data(),
            epochs=4,
            verbose=0,
            callbacks=[*written, keras.callbacks.BackupAndRestore(str(backup)), Stop()],
        )
    second, whole = model(keras.layers.Dropout(0.5)), model(keras.layers.Dropout(0.5))
    second.fit(
        *data(), epochs=4, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(str(backup))]
    )
    assert len((FOLDER / "log.csv").read_text().splitlines()) >= 2
    loaded = keras.saving.load_model(best)
    assert equal_everywhere(loaded.predict(data(9)[0], verbose=0))
    whole.fit(*data(), epochs=4, verbose=0)
    assert second.optimizer.iterations == whole.optimizer.iterations


def learning_rate_and_early_stopping() -> None:
    """A decision of one worker's callback is everybody's."""

    class Impatient(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if COMM.rank == 1 and batch == 2:
                self.model.stop_training = True

    built = model()
    built.fit(*data(), batch_size=16, epochs=3, verbose=0, callbacks=[Impatient()])
    assert built.optimizer.iterations == 3


def main(own: dict[str, Any]) -> None:
    """Runs the checks that the command names: a backend's ``own``, or those of this file."""
    for check in sys.argv[1].split(","):
        keras.utils.set_random_seed(7)
        (own.get(check) or globals()[check])()
        COMM.barrier()
        print("ok", check, flush=True)


if __name__ == "__main__":
    main({})
