"""What a user expects of a run with Keras on JAX alone: see `backend_behaviours`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import keras
import numpy as np
import pytest
from backend_behaviours import COMM, FOLDER, data, main, model, used, written

import syrtos.data
from syrtos.errors import ConfigurationError, DataError
from syrtos.keras.jax import script_functions


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


def averages_of_weights() -> float:
    """Evaluation lends the arrays of the weights, which are those of the moving averages too."""
    averaged = model(keras.layers.Dense(8))
    averaged.compile(keras.optimizers.Adam(0.01, use_ema=True), "mse")
    x, y = data(25)
    averaged.fit(x, y, batch_size=8, verbose=0)
    averaged.evaluate(x, y, verbose=0)
    return float(np.asarray(averaged.predict(x, verbose=0)).sum())


def loop_of_its_own() -> Any:
    """Losses, weights and a metric of a function that the script compiles, with batches of 16, 16 and 8 rows."""
    # however little it computes
    script_functions._OPERATIONS = 1.0
    x, y = data(40)
    built = model(
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        Sorting(),
        keras.layers.Dense(8),
    )
    optimizer, loss_fn = keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError()
    optimizer.build(built.trainable_variables)
    traced: list[str] = []

    def loss_of(trained: Any, others: Any, x: Any, y: Any, training: bool) -> Any:
        traced.append("train" if training else "evaluate")
        predicted, others = built.stateless_call(trained, others, x, training=training)
        return loss_fn(y, predicted), others

    @functools.partial(jax.jit, static_argnames="training", donate_argnums=0)
    def step(state: Any, batch: Any, *, training: bool) -> Any:
        trained, others, slots = state
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, others), gradients = gradient(trained, others, *batch, training)
        trained, slots = optimizer.stateless_apply(slots, gradients, trained)
        return loss, (trained, others, slots)

    @jax.jit
    def evaluate(trained: Any, others: Any, x: Any, y: Any) -> Any:
        return loss_of(trained, others, x, y, False)[0]

    groups = built.trainable_variables, built.non_trainable_variables, optimizer.variables
    # their own values are used further below
    state = [[jax.numpy.array(v.value, copy=True) for v in group] for group in groups]
    losses: list[float] = []
    for _ in range(2):
        for begin in range(0, len(x), 16):
            rows = slice(begin, begin + 16)
            batch = (x[rows], jax.numpy.asarray(y[rows]))
            loss, state = step(state, batch, training=True)
            losses.append(float(loss))
    losses.append(len(traced))
    if COMM.size > 1:
        (program,) = step._programs.values()
        assert program._traces
        assert all(found for _, found in program._traces)
    # one worker alone may call what does not train
    if COMM.rank == 0:
        losses.append(float(evaluate(*state[:2], x, y)))
    losses[7:] = [COMM.broadcast_object(losses[7] if COMM.rank == 0 else None)]
    return [*losses, *(float(jax.numpy.sum(jax.numpy.abs(v))) for v in state[0])]


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
    found.update(numbers_beside_rows())
    found["loss of rows on a mesh"] = rows_on_a_mesh()
    found["calls of a step"] = calls_of_a_step()
    found["after moving averages"] = averages_of_weights()
    found["a loop of its own"] = loop_of_its_own()
    written("one_program", built, found)


class Scaling(keras.Model):
    """Takes a number, a whole number and a table beside the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.dense(x["a rows"]) * x["scale"] + keras.ops.sum(x["table"]) + x["whole"]


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        rng = np.random.default_rng(index)
        beside = {"scale": np.float32(2), "whole": np.asarray(3), "table": rng.random((4, 2))}
        return {"a rows": rng.random((7, 8)), **beside}, rng.random((7, 2)), np.ones(7)


def numbers_beside_rows() -> dict[str, Any]:
    keras.utils.set_random_seed(4)
    scaling, batches = Scaling(), Batches()
    scaling.compile("sgd", "mse")
    return {
        "loss of numbers beside rows": scaling.fit(batches, verbose=0).history["loss"],
        "loss of one such batch": [scaling.train_on_batch(*batches[5])],
    }


def rows_on_a_mesh() -> list[float]:
    """Rows that the script has put on a device, or on a mesh of all, before it trains."""
    rows = jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()), ("rows",)), jax.sharding.PartitionSpec("rows")
    )
    x, y = data(36)
    built = model()
    on_mesh, on_device = jax.device_put(x, rows), jax.device_put(y, jax.devices()[0])
    trained = built.fit(on_mesh, on_device, batch_size=9, verbose=0, validation_split=0.25)
    drawn = ((on_mesh[i : i + 9], on_device[i : i + 9]) for i in (0, 9))
    more = built.fit(drawn, verbose=0, validation_data=(on_mesh, jax.device_put(y, rows)))
    return [
        *trained.history["val_loss"],
        *more.history["val_loss"],
        *built.evaluate(on_mesh, on_device, batch_size=9, verbose=0),
        *built.test_on_batch(on_mesh, on_device),
        float(np.sum(built.predict(on_mesh, batch_size=9, verbose=0))),
    ]


class Calling(keras.layers.Layer):
    """Calls a Python function in each step, alone and in a loop."""

    seen: list[float] = []

    def call(self, x: Any) -> Any:
        jax.debug.callback(lambda rows: self.seen.append(float(rows.sum())), x)

        def add(total: Any, column: Any) -> Any:
            jax.debug.callback(lambda rows: self.seen.append(len(rows)), column)
            return total + column.sum(), None

        total, _ = jax.lax.scan(add, jax.numpy.zeros(()), x.T)
        return x + 0.01 * total


def calls_of_a_step() -> list[float]:
    """What a function that a compiled step calls has kept, on every worker."""
    Calling.seen.clear()
    built = model(Calling())
    built.fit(*data(25), batch_size=9, verbose=0)
    jax.effects_barrier()
    kept = sorted(Calling.seen)
    assert len({tuple(np.round(each, 3)) for each in COMM.allgather_object(kept)}) == 1
    return kept


def cleared_session() -> None:
    """`clear_session` forgets a distribution: the next model is still everybody's."""
    keras.utils.clear_session()
    built = model()
    built.fit(*data(20), verbose=0)
    assert is_shared(built)


def steps_that_are_not_compiled() -> None:
    """Each worker computes whole batches, whose rows Python code can read."""
    x, y = data(40)

    def largest(_: Any, predicted: Any) -> Any:
        # While the model is built nothing has a value yet.
        is_traced = isinstance(predicted, keras.KerasTensor | jax.core.Tracer)
        return predicted.ndim if is_traced else float(np.asarray(predicted).max())

    for options in ({"run_eagerly": True}, {"jit_compile": False}):
        built = model()
        built.compile("adam", "mse", metrics=[largest], **options)
        assert built.evaluate(x, y, batch_size=10, verbose=0)[1] > 0
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
