"""What a user expects of a run with Keras on JAX, checked from inside it by every worker: ``syrtos run -n 2 jax_behaviours.py CHECK FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

import syrtos.data
from syrtos.comm import world
from syrtos.errors import ConfigurationError, DataError, DivergenceError

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


def is_shared(built: Any) -> bool:
    """Whether a model is computed by all workers together."""
    return len(built.weights[0].value.sharding.device_set) == COMM.size


def one_program() -> None:
    """Dropout's masks, BatchNormalization's statistics, uneven and single rows, validation and predictions: written, to be compared with one process's."""
    x, y = data()
    built = model(keras.layers.Dense(32, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3))
    history = built.fit(x, y, batch_size=16, epochs=3, validation_split=0.25, verbose=0).history
    again = built.fit(x[:33], y[:33], batch_size=16, verbose=0, sample_weight=np.linspace(0.1, 2, 33)).history
    found = {f"log {name}": values for name, values in history.items()} | {"again": again["loss"]}
    found["evaluated"] = built.evaluate(x, y, batch_size=16, verbose=0)
    found["predicted"] = built.predict(x, batch_size=16, verbose=0)
    found["on batch"] = [
        *map(float, built.train_on_batch(x[:5], y[:5])),
        *map(float, built.test_on_batch(x[:1], y[:1])),
    ]
    found["predicted on batch"] = built.predict_on_batch(x[:3])
    found |= {f"weight {k}": weight for k, weight in enumerate(built.get_weights())}
    if COMM.size > 1:
        assert is_shared(built)
    assert all(equal_everywhere(values) for values in found.values())
    if COMM.rank == 0:
        np.savez(FOLDER / "one_program.npz", **{name: np.asarray(value) for name, value in found.items()})


def cleared_session() -> None:
    """`clear_session` forgets a distribution: the next model is still everybody's."""
    keras.utils.clear_session()
    built = model()
    built.fit(*data(20), verbose=0)
    assert is_shared(built)


def generators_and_steps() -> None:
    x, y = data(60)

    def batches() -> Iterator[Any]:
        while True:
            for k in range(0, 60, 9):
                yield x[k : k + 9], y[k : k + 9]

    built = model()
    built.compile("adam", "mse", steps_per_execution=3)
    history = built.fit(batches(), steps_per_epoch=7, epochs=2, verbose=0).history
    assert equal_everywhere(history["loss"])
    assert is_shared(built)


def planned_data() -> None:
    """An order of `syrtos.data` is that of the plain arrays where it is not shuffled, and equal on all workers where it is."""
    x, y = data(60)
    losses = []
    for batches in ((x, y), syrtos.data.from_arrays(x, y, batch_size=9)):
        keras.utils.set_random_seed(7)
        given = {"x": batches[0], "y": batches[1], "batch_size": 9} if isinstance(batches, tuple) else {"x": batches}
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


def steps_that_are_not_compiled() -> None:
    x, y = data(40)
    for options in ({"run_eagerly": True}, {"jit_compile": False}):
        built = model()
        built.compile("adam", "mse", **options)
        built.fit(x, y, batch_size=9, verbose=0)
        assert is_shared(built)
        with pytest.raises(DataError, match=r"different (shapes|data)"):
            built.train_on_batch(x[: 4 + COMM.rank], y[: 4 + COMM.rank])


def rows_of_each_worker() -> None:
    """A script that says that it shards the data itself: its workers' rows make up the global batch, and must differ."""
    x, y = data(80)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    built = model()
    mine = slice(COMM.rank, None, COMM.size)
    built.fit(x[mine], y[mine], batch_size=8, shuffle=False, verbose=0)
    assert built.optimizer.iterations == 80 / COMM.size / 8
    with pytest.raises(DataError, match="All workers read the same rows"):
        model().fit(x, y, shuffle=False, verbose=0)
    keras.distribution.set_distribution(None)


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

    backup = str(FOLDER / "accumulated")
    with pytest.raises(KeyboardInterrupt):
        built().fit(
            x,
            y,
            batch_size=16,
            epochs=2,
            shuffle=False,
            verbose=0,
            callbacks=[keras.callbacks.BackupAndRestore(backup), Stop()],
        )
    resumed, whole = built(), built()
    resumed.fit(
        x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(backup)]
    )
    whole.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(resumed.get_weights()[0], whole.get_weights()[0], rtol=1e-5, atol=1e-6)


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
    np.testing.assert_allclose(first.get_weights()[0], second.get_weights()[0], rtol=1e-5, atol=1e-6)


def files() -> None:
    """Written once; a run that goes on has the state of the one that was interrupted."""
    best, backup = FOLDER / "best.keras", FOLDER / "backup"

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    written = [keras.callbacks.ModelCheckpoint(str(best)), keras.callbacks.CSVLogger(str(FOLDER / "log.csv"))]
    first = model(keras.layers.Dropout(0.5))
    with pytest.raises(KeyboardInterrupt):
        first.fit(
            *data(), epochs=4, verbose=0, callbacks=[*written, keras.callbacks.BackupAndRestore(str(backup)), Stop()]
        )
    second, whole = model(keras.layers.Dropout(0.5)), model(keras.layers.Dropout(0.5))
    second.fit(*data(), epochs=4, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(str(backup))])
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


def model_parallel() -> None:
    """Kernels are split over the processes; losses are one process's, and a file holds the whole model."""
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((1, len(devices)), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*wide.*kernel"] = (None, "model")
    x, y = data()
    expected = model(keras.layers.Dense(16, "relu", name="wide")).fit(x, y, batch_size=16, epochs=2, verbose=0).history
    keras.utils.set_random_seed(7)
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))
    built = model(keras.layers.Dense(16, "relu", name="wide"))
    saved = keras.callbacks.ModelCheckpoint(str(FOLDER / "split.keras"))
    found = built.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[saved]).history
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    assert built.get_layer("wide").kernel.value.addressable_shards[0].data.shape == (8, 16 // COMM.size)
    predicted = built.predict(x, verbose=0)
    built.save(FOLDER / "saved.keras")
    keras.distribution.set_distribution(None)
    for name in ("split.keras", "saved.keras"):
        np.testing.assert_allclose(
            keras.saving.load_model(FOLDER / name).predict(x, verbose=0), predicted, rtol=1e-4, atol=1e-6
        )


def devices_of_one_worker() -> None:
    """A distribution over this worker's own devices would train alone."""
    mine = [f"cpu:{device.id}" for device in jax.local_devices()]
    with pytest.raises(ConfigurationError, match="leaves out devices of other workers"):
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=mine))
    model().fit(*data(20), verbose=0)


if __name__ == "__main__":
    for check in sys.argv[1].split(","):
        keras.utils.set_random_seed(7)
        globals()[check]()
        COMM.barrier()
        print("ok", check, flush=True)
