"""What a user expects of a run with Keras on JAX alone: see `backend_behaviours`."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest
from backend_behaviours import COMM, FOLDER, data, main, model, used, written

import syrtos.data
from syrtos.errors import ConfigurationError, DataError


def is_shared(built: Any) -> bool:
    """Whether a model is computed by all workers together."""
    return len(built.weights[0].value.sharding.device_set) == len(jax.devices())


class Mixing(keras.layers.Layer):
    """Adds another row of the batch to each."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = keras.random.SeedGenerator(8)

    def call(self, x: Any, training: bool = False) -> Any:
        return 0.7 * x + 0.3 * keras.random.shuffle(x, seed=self.draws) if training else x


class Sorting(keras.layers.Layer):
    """Sorts each feature over the rows of the batch, and the features of each row."""

    def call(self, x: Any) -> Any:
        return keras.ops.sort(x, axis=0) + jax.vmap(jax.numpy.sort)(x)


def one_program() -> None:
    """Dropout's masks, statistics of BatchNormalization, uneven and single rows, planned data, predictions, mixed and sorted rows: as in one process."""
    built = model(
        keras.layers.Dense(32, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)
    )
    found = used(built)
    if COMM.size > 1:
        assert is_shared(built)
    for batch in (12, 9):  # the rows of one are split evenly over two workers
        planned = syrtos.data.from_arrays(*data(60), batch_size=batch, shuffle=True, seed=1)
        found[f"planned in batches of {batch}"] = built.fit(planned, epochs=2, verbose=0).history[
            "loss"
        ]
    mixing = model(Mixing(), keras.layers.Dense(8))
    found["loss with mixed rows"] = mixing.fit(*data(25), batch_size=9, verbose=0).history["loss"]
    sorting = model(Sorting(), keras.layers.Dense(8))
    found["loss with sorted rows"] = sorting.fit(*data(25), batch_size=9, verbose=0).history["loss"]
    written("one_program", built, found)


def cleared_session() -> None:
    """`clear_session` forgets a distribution: the next model is still everybody's."""
    keras.utils.clear_session()
    built = model()
    built.fit(*data(20), verbose=0)
    assert is_shared(built)


def steps_that_are_not_compiled() -> None:
    x, y = data(40)
    for options in ({"run_eagerly": True}, {"jit_compile": False}):
        built = model()
        built.compile("adam", "mse", **options)
        built.fit(x, y, batch_size=9, verbose=0)
        assert is_shared(built)
        np.testing.assert_allclose(built.predict(x, batch_size=10, verbose=0), built(x), rtol=1e-5)
        with pytest.raises(DataError, match=r"different (shapes|data)"):
            built.train_on_batch(x[: 4 + COMM.rank], y[: 4 + COMM.rank])


class Scored(keras.Sequential):
    """A step of the script's own with a metric that has no variables before its first call."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)
        self.score = keras.metrics.F1Score(threshold=0.5)

    @property
    def metrics(self) -> list[Any]:
        return [self.score]

    def train_step(self, state: Any, data: Any) -> Any:
        trained, others, slots, scores = state
        x, y = data

        def loss(trained: Any, others: Any) -> Any:
            predicted, others = self.stateless_call(trained, others, x, training=True)
            return keras.ops.mean((predicted - y) ** 2), (predicted, others)

        (value, (predicted, others)), grads = jax.value_and_grad(loss, has_aux=True)(
            trained, others
        )
        trained, slots = self.optimizer.stateless_apply(slots, grads, trained)
        scores = self.score.stateless_update_state(scores, y, predicted)
        logs = {"loss": value, "score": self.score.stateless_result(scores)[0]}
        return logs, (trained, others, slots, scores)


def metric_made_in_a_step() -> None:
    found = []
    for is_built in (False, True):
        keras.utils.set_random_seed(1)
        built = Scored([keras.layers.Input((8,)), keras.layers.Dense(1, "sigmoid")])
        built.compile("adam", "mse")
        if is_built:
            built.score.update_state(np.zeros((1, 1)), np.zeros((1, 1)))
            built.score.reset_state()
        x, _ = data(40)
        found.append(built.fit(x, x[:, :1] > 0, batch_size=9, epochs=2, verbose=0).history)
    np.testing.assert_allclose(found[0]["score"], found[1]["score"], rtol=1e-5)
    np.testing.assert_allclose(found[0]["loss"], found[1]["loss"], rtol=1e-5)


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


def model_parallel() -> None:
    """Kernels are split over the processes; losses are one process's, and a file holds the whole model."""
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((1, len(devices)), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*wide.*kernel"] = (None, "model")
    x, y = data()
    expected = (
        model(keras.layers.Dense(16, "relu", name="wide"))
        .fit(x, y, batch_size=16, epochs=2, verbose=0)
        .history
    )
    keras.utils.set_random_seed(7)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    )
    built = model(keras.layers.Dense(16, "relu", name="wide"))
    saved = keras.callbacks.ModelCheckpoint(str(FOLDER / "split.keras"))
    found = built.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[saved]).history
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    assert built.get_layer("wide").kernel.value.addressable_shards[0].data.shape == (
        8,
        16 // COMM.size,
    )
    predicted = built.predict(x, verbose=0)
    built.save(FOLDER / "saved.keras")
    keras.distribution.set_distribution(None)
    for name in ("split.keras", "saved.keras"):
        np.testing.assert_allclose(
            keras.saving.load_model(FOLDER / name).predict(x, verbose=0),
            predicted,
            rtol=1e-4,
            atol=1e-6,
        )


def devices_of_one_worker() -> None:
    """A distribution over this worker's own devices would train alone."""
    mine = [f"cpu:{device.id}" for device in jax.local_devices()]
    with pytest.raises(ConfigurationError, match="leaves out devices of other workers"):
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=mine))
    model().fit(*data(20), verbose=0)


if __name__ == "__main__":
    main(globals())
