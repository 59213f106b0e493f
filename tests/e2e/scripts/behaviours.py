"""What a user expects of a run, checked from inside it by every worker: ``syrtos run -n 2 [flags] behaviours.py CHECK FOLDER``."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from syrtos.comm import world
from syrtos.errors import ConfigurationError, DataError, DivergenceError
from syrtos.keras.tensorflow.input import iterating
from syrtos.keras.tensorflow.partition import loop_functions
from syrtos.records import record_of

FOLDER = Path(sys.argv[2])
COMM = world.current().comm


def data(samples: int = 90) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 6)).astype("float32")
    return x, x[:, :1] * 2


def model(*layers: Any, rate: float = 0.05) -> Any:
    keras.utils.set_random_seed(0)
    built = keras.Sequential([keras.layers.Input((6,)), *layers, keras.layers.Dense(1)])
    built.compile(keras.optimizers.SGD(rate), "mse")
    return built


def equal_everywhere(values: Any) -> bool:
    everyone = COMM.allgather(np.asarray(values, np.float64).reshape(1, -1))
    return bool((everyone == everyone[0]).all())


def dropout() -> None:
    """A step's mask is that of one process, for all rows, and weights stay equal."""
    built = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dropout(0.5, seed=5)])
    built.compile("sgd", "mse")
    x = np.ones((9, 6), "float32")
    masked = keras.random.dropout(x, 0.5, seed=keras.random.SeedGenerator(5)).numpy()
    told = built.fit(x, x, batch_size=9, verbose=0).history["loss"][0]
    np.testing.assert_allclose(told, np.mean((masked - x) ** 2), rtol=1e-6)
    unseeded = model(keras.layers.Dropout(0.5))
    unseeded.fit(*data(), batch_size=20, verbose=0)
    assert equal_everywhere(unseeded.get_weights()[0])


def noise_of_a_step() -> None:
    """What a step draws by `tf.random` is drawn for the whole batch, by all workers alike; weights stay equal."""
    generator = tf.random.Generator.from_seed(3)
    drawn: list[np.ndarray[Any, Any]] = []

    class Noise(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            noise = tf.random.normal(tf.shape(x)), generator.normal([6])
            tf.numpy_function(
                lambda *values: drawn.extend(value.reshape(-1) for value in values), noise, []
            )
            return x + noise[0] + noise[1]

    noisy = model(Noise())
    noisy.fit(*data(9), batch_size=9, verbose=0)
    for values in drawn[-2:]:
        assert values.size in (54, 6)
        assert equal_everywhere(values)
        assert len(np.unique(values)) == values.size
    assert equal_everywhere(noisy.get_weights()[0])


def batchnorm() -> None:
    """Statistics of the whole batch, seen by one process's numbers."""
    keras.utils.set_random_seed(0)
    trained = model(
        keras.layers.Dense(8, use_bias=False), keras.layers.BatchNormalization(momentum=0.5)
    )
    trained.fit(*data(), batch_size=31, epochs=3, verbose=0)
    for weight in trained.get_weights():
        assert equal_everywhere(weight)
    if COMM.rank == 0:
        np.savez(FOLDER / "batchnorm.npz", *trained.get_weights())


def learning_rate() -> None:
    """--scale-lr linear --warmup-epochs 2: climbs from the script's rate to N times it."""
    rates: list[float] = []
    trained = model(rate=0.01)
    watch = keras.callbacks.LambdaCallback(
        on_batch_end=lambda b, logs: rates.append(float(trained.optimizer.learning_rate))
    )
    trained.fit(*data(), batch_size=30, epochs=4, verbose=0, callbacks=[watch])
    assert abs(rates[0] - 0.01) < 1e-6
    assert rates == sorted(rates)
    assert abs(rates[-1] - 0.01 * COMM.size) < 1e-6
    assert 0.01 < rates[4] < 0.01 * COMM.size


class Rates(keras.callbacks.Callback):
    """Notes the learning rate of every batch; at batch ``stop`` the run is interrupted."""

    def __init__(self, stop: int = -1) -> None:
        super().__init__()
        self.seen: list[float] = []
        self.stop = stop

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(self.model.optimizer.learning_rate))
        if len(self.seen) == self.stop:
            raise InterruptedError


def climb(batches: int) -> list[float]:
    """The rates of two epochs of warm-up from 0.01 to N times it, for each batch."""
    return [0.01 * (1 + (COMM.size - 1) * k / (2 * batches)) for k in range(2 * batches)]


def learning_rate_accumulated() -> None:
    """The warm-up goes by batches, not by updates."""
    watch = Rates()
    trained = model()
    trained.compile(keras.optimizers.SGD(0.01, gradient_accumulation_steps=3), "mse")
    trained.fit(*data(), batch_size=30, epochs=4, verbose=0, callbacks=[watch])
    np.testing.assert_allclose(watch.seen[:6], climb(3), rtol=1e-6)
    assert abs(watch.seen[-1] - 0.01 * COMM.size) < 1e-6


def learning_rate_unknown_length() -> None:
    """While nobody knows how long an epoch is the rate climbs from epoch to epoch."""

    def batches() -> Iterator[Any]:
        x, y = data()
        for k in range(0, 90, 30):
            yield x[k : k + 30], y[k : k + 30]

    watch = Rates()
    spec = (tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None, 1], tf.float32))
    generated = tf.data.Dataset.from_generator(batches, output_signature=spec)
    model(rate=0.01).fit(generated, epochs=4, verbose=0, callbacks=[watch])
    np.testing.assert_allclose(watch.seen[:6], [0.01] * 3 + climb(3)[3:], rtol=1e-6)
    assert abs(watch.seen[-1] - 0.01 * COMM.size) < 1e-6


def learning_rate_resumed() -> None:
    """A run that is interrupted in the middle of the warm-up, and begun again, climbs on."""
    rates = []
    for stop in (5, -1):
        watch = Rates(stop)
        backup = keras.callbacks.BackupAndRestore(str(FOLDER / "warming"), save_freq="epoch")
        with contextlib.suppress(InterruptedError):
            model(rate=0.01).fit(
                *data(), batch_size=30, epochs=4, verbose=0, callbacks=[backup, watch]
            )
        rates.append(watch.seen)
    assert len(rates[0]) == 5
    np.testing.assert_allclose(rates[1][:3], climb(3)[3:], rtol=1e-6)
    assert abs(rates[1][-1] - 0.01 * COMM.size) < 1e-6


def learning_rate_of_a_loaded_model() -> None:
    """A model that was saved in the middle of the warm-up, and is loaded, climbs on."""
    trained, watch = model(rate=0.01), Rates()
    trained.fit(*data(), batch_size=30, epochs=1, verbose=0)
    path = FOLDER / "warm.keras"
    trained.save(path)
    loaded = keras.saving.load_model(path)
    loaded.fit(*data(), batch_size=30, epochs=3, verbose=0, callbacks=[watch])
    np.testing.assert_allclose(watch.seen[:3], climb(3)[3:], rtol=1e-6)
    assert abs(watch.seen[-1] - 0.01 * COMM.size) < 1e-6


def files() -> None:
    """Written once; complete when the call returns; readable on every worker."""
    trained = model()
    callbacks = [
        keras.callbacks.TensorBoard(str(FOLDER / "board")),
        keras.callbacks.CSVLogger(str(FOLDER / "log.csv")),
        keras.callbacks.ModelCheckpoint(str(FOLDER / "at-{epoch}.keras")),
    ]
    trained.fit(
        *data(), batch_size=30, epochs=2, verbose=0, callbacks=callbacks, validation_data=data()
    )
    for part in (
        "train",
        "validation",
    ):  # the second is opened while the input of an evaluation already runs
        assert len(list((FOLDER / "board" / part).glob("*"))) == 1
    assert len((FOLDER / "log.csv").read_text().splitlines()) == 3
    assert sorted(p.name for p in FOLDER.glob("*.keras")) == ["at-1.keras", "at-2.keras"]
    trained.export(FOLDER / "exported", verbose=False)
    loaded = tf.saved_model.load(str(FOLDER / "exported"))
    served = loaded.serve(data()[0])
    np.testing.assert_allclose(served, trained.predict(data()[0], verbose=0), rtol=1e-5)
    trained.save_weights(FOLDER / "w.weights.h5")
    again = model()
    again.load_weights(FOLDER / "w.weights.h5")
    assert equal_everywhere(again.get_weights()[0])


def fresh_seeds() -> None:
    """Generators that are given no seed draw the same on all workers, and something new each time."""
    np.random.seed()
    drawn = [
        np.random.random(),
        np.random.default_rng().random(),
        np.random.default_rng(None).random(),
        *(np.random.RandomState().random_sample() for _ in range(2)),
        np.random.Generator(np.random.PCG64()).random(),
        np.random.Generator(np.random.Philox(np.random.SeedSequence())).random(),
        *(random.Random().random() for _ in range(2)),
        float(tf.random.Generator.from_non_deterministic_state().uniform(())),
        float(tf.random.get_global_generator().uniform(())),
    ]
    held: list[Any] = []

    @tf.function
    def draw() -> tf.Tensor:
        if not held:
            held.append(tf.random.Generator.from_non_deterministic_state())
        return held[0].uniform(())

    drawn.append(float(draw()))
    # Another line, which one worker alone runs, does not move the series of these.
    if COMM.rank == 1:
        np.random.default_rng()
        random.Random()
    drawn += [np.random.default_rng().random(), random.Random().random()]
    assert equal_everywhere(drawn)
    assert len(set(drawn)) == len(drawn)
    # Python's own library names temporary files by such numbers.
    names = COMM.allgather_object(os.path.basename(tempfile.mktemp()))
    assert len(set(names)) == COMM.size


def threads() -> None:
    """`fit` in a thread of the script's own, or in two at once, is refused before training."""
    refused: list[str] = []

    def train() -> None:
        try:
            model().fit(*data(), verbose=0)
        except ConfigurationError as error:
            refused.append(str(error))

    for count in (1, 2):
        started = [threading.Thread(target=train) for _ in range(count)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    assert ["a thread that the script has started" in text for text in refused] == [True] * 3


def own_folders() -> None:
    """What each worker logs to a temporary folder of its own, it can read there."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.csv")
        logger = keras.callbacks.CSVLogger(str(log))
        model().fit(*data(), batch_size=30, epochs=2, verbose=0, callbacks=[logger])
        assert len(log.read_text().splitlines()) == 3


def backup() -> None:
    """A run that failed goes on where it was, on every worker."""
    where = str(FOLDER / "backup")

    class Fail(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise RuntimeError("as planned")

    trained = model()
    try:
        trained.fit(
            *data(),
            batch_size=30,
            epochs=5,
            verbose=0,
            callbacks=[keras.callbacks.BackupAndRestore(where), Fail()],
        )
    except RuntimeError:
        COMM.barrier()
    again = model()
    history = again.fit(
        *data(),
        batch_size=30,
        epochs=5,
        verbose=0,
        callbacks=[keras.callbacks.BackupAndRestore(where)],
    )
    assert history.epoch == [3, 4] or history.epoch == [2, 3, 4], history.epoch
    straight = model()
    straight.fit(*data(), batch_size=30, epochs=5, verbose=0)
    np.testing.assert_allclose(again.get_weights()[0], straight.get_weights()[0], rtol=1e-4)
    assert equal_everywhere(again.get_weights()[0])


def draws_by_a_constant_seed() -> None:
    """Rows get the numbers that they get in one process, in training and in predictions."""

    class Noise(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * tf.random.stateless_uniform(tf.shape(x), (1, 2))

    x, y = data(30)
    noisy = model(Noise())
    drawn = tf.random.stateless_uniform((30, 6), (1, 2))
    weights, bias = noisy.get_weights()
    expected = (x * drawn).numpy() @ weights + bias
    told = noisy.fit(x, y, batch_size=30, verbose=0, shuffle=False)
    loss = told.history["loss"][0]
    np.testing.assert_allclose(loss, np.mean((expected - y) ** 2), rtol=1e-5)
    noisy.set_weights([weights, bias])
    predicted = noisy.predict(x, batch_size=30, verbose=0)
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-6)


class Repeated(keras.metrics.Metric):
    """The number of rows of 21 whose numbers are those of the rows seven places before, which another worker has."""

    def __init__(self) -> None:
        super().__init__(name="repeated")
        self.number = self.add_weight(name="number", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        repeated = tf.equal(y_pred[:-7], y_pred[7:])
        self.number.assign_add(tf.reduce_sum(tf.cast(repeated, tf.float32)))

    def result(self) -> Any:
        return tf.convert_to_tensor(self.number)


class Sampling(keras.layers.Layer):
    """Numbers from 0 to 1 for rows of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(5)

    def call(self, x: Any) -> Any:
        return x + keras.random.uniform(tf.shape(x), seed=self.seed)


class OneByOne(keras.layers.Layer):
    """The same numbers, drawn for each row by itself."""

    def __init__(self, mapped: Any) -> None:
        super().__init__()
        self.mapped = mapped

    def call(self, x: Any) -> Any:
        return self.mapped(lambda row: row + tf.random.uniform(()), x)


def draws_for_rows() -> None:
    """Predictions get the numbers of one process; in other steps the rows of one worker get other numbers than those of another."""
    x = tf.zeros((21, 1))
    sampling = keras.Sequential([keras.layers.Input((1,)), Sampling()])
    drawn = keras.random.uniform((21, 1), seed=keras.random.SeedGenerator(5)).numpy()
    np.testing.assert_array_equal(sampling.predict(x, batch_size=21, verbose=0), drawn)
    layers = Sampling(), OneByOne(tf.map_fn), OneByOne(tf.vectorized_map)
    for number, layer in enumerate(layers):
        last = keras.layers.Dense(1, kernel_initializer="ones")
        drawing = keras.Sequential([keras.layers.Input((1,)), layer, last])
        drawing.compile("sgd", "mse", metrics=[Repeated()])
        if number == 0:
            found = drawing.evaluate(x, x, batch_size=21, verbose=0, return_dict=True)
            assert found["repeated"] == 0, found
        told = drawing.fit(x, x, batch_size=21, verbose=0).history
        assert told["repeated"] == [0], (number, told)


def draws_for_a_batch() -> None:
    """Noise for gradients and the choice of a branch are the same on all workers."""

    class Noisy(keras.Sequential):
        def train_step(self, batch: Any) -> dict[str, Any]:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            factor = keras.random.beta((1,), 2.0, 2.0, seed=seeds)
            sign = tf.cond(tf.random.uniform(()) < 0.5, lambda: 1.0, lambda: -1.0)
            gradients = [
                factor * gradient
                + sign * tf.random.normal(tf.shape(gradient))
                + generator.normal([1])
                for gradient in tape.gradient(loss, self.trainable_variables)
            ]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "sign": sign}

    seeds, generator = keras.random.SeedGenerator(4), tf.random.Generator.from_seed(3)
    noisy = Noisy([keras.layers.Input((6,)), keras.layers.Dense(5), keras.layers.Dense(1)])
    noisy.compile(keras.optimizers.SGD(0.01))
    signs: list[float] = []
    note = keras.callbacks.LambdaCallback(on_batch_end=lambda _, logs: signs.append(logs["sign"]))
    noisy.fit(*data(), batch_size=20, epochs=4, verbose=0, callbacks=[note])
    assert set(map(float, signs)) == {1.0, -1.0}, signs
    assert equal_everywhere(np.concatenate([w.ravel() for w in noisy.get_weights()]))


def predictions_of_all_kinds() -> None:
    """Rows, words, lists and sparse rows of all workers in order; numbers of the whole batch."""

    class Describing(keras.Sequential):
        def predict_step(self, batch: Any) -> dict[str, Any]:
            x = batch[0] if isinstance(batch, tuple) else batch
            whole = tf.cast(x[:, 0], tf.int64)
            return {
                "rows": self(x),
                "words": tf.strings.as_string(whole),
                "lists": tf.RaggedTensor.from_row_lengths(tf.repeat(whole, whole % 3), whole % 3),
                "mean": tf.reduce_mean(x),
                "number": tf.shape(x)[0],
            }

    x = np.arange(10, dtype="float32")[:, None]
    describing = Describing([keras.layers.Input((1,)), keras.layers.Dense(1)])
    found = describing.predict_on_batch(x)
    kernel, bias = describing.get_weights()
    np.testing.assert_allclose(found["rows"], x @ kernel + bias, rtol=1e-5)
    assert [word.decode() for word in found["words"]] == [str(k) for k in range(10)]
    assert found["lists"].to_list() == [[k] * (k % 3) for k in range(10)]
    assert "describing" not in str(world.current().ledger.told.get("not_split"))
    np.testing.assert_allclose(found["mean"], 4.5, rtol=1e-6)
    assert found["number"] == 10


def own_iterator() -> None:
    """The function for each batch, called by the script with an iterator of its own, takes whole batches."""
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(20)
    by_hand, fitted = model(), model()
    by_hand.make_train_function()
    for _ in range(2):
        batches = iter(dataset)
        with contextlib.suppress(StopIteration):
            while True:
                logs = by_hand.train_function(batches)
    assert float(logs["loss"]) > 0
    fitted.fit(dataset, epochs=2, verbose=0)
    np.testing.assert_allclose(by_hand.get_weights()[0], fitted.get_weights()[0], rtol=1e-5)
    assert int(by_hand.optimizer.iterations) == 10
    assert equal_everywhere(by_hand.get_weights()[0])


def division_that_fails() -> None:
    """A step whose program can't be divided is computed whole by every worker, which is said."""
    from syrtos.keras.tensorflow.partition.partitioner import Partitioner

    emit = Partitioner._emit

    def failing(self: Any, op: Any, values: Any) -> Any:
        if op.type == "Tanh":
            raise AssertionError("as planned")
        return emit(self, op, values)

    x, y = data()
    trained, other = (model(keras.layers.Dense(4, "tanh")) for _ in range(2))
    other.set_weights(trained.get_weights())
    expected = other.fit(x, y, batch_size=20, epochs=2, verbose=0, shuffle=False).history["loss"]
    Partitioner._emit = failing
    try:
        found = trained.fit(x, y, batch_size=20, epochs=2, verbose=0, shuffle=False).history["loss"]
    finally:
        Partitioner._emit = emit
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert "as planned" in str(world.current().ledger.told["not_split"])


def one_wants_to_stop() -> None:
    """A rank that stops alone would leave the others waiting."""

    class Impatient(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if COMM.rank == COMM.size - 1 and epoch == 1:
                self.model.stop_training = True

    history = model().fit(*data(), batch_size=30, epochs=9, verbose=0, callbacks=[Impatient()])
    assert history.epoch == [0, 1]


def different_weights() -> None:
    """Unequal initial weights are replaced by rank 0's before the first step."""
    trained = model()
    trained.layers[0].kernel.assign(np.full((6, 1), COMM.rank + 1.0))
    seen: list[float] = []
    begin = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda b, logs: seen.append(
            float(trained.layers[0].kernel.numpy()[0, 0])
        )
    )
    trained.fit(*data(), batch_size=90, verbose=0, callbacks=[begin])
    assert seen == [1.0]


def different_weights_without_fit() -> None:
    """Before any `fit` all evaluate and predict with rank 0's weights; after it unequal weights are an error."""
    x, y = data()
    for name in ("evaluate", "predict"):
        fresh = model()
        fresh.layers[0].kernel.assign(np.full((6, 1), COMM.rank + 1.0))
        if name == "predict":
            np.testing.assert_allclose(
                fresh.predict(x, verbose=0), x.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5
            )
        else:
            loss = float(np.mean((x.sum(axis=1, keepdims=True) - y) ** 2))
            assert abs(fresh.evaluate(x, y, verbose=0) - loss) < 1e-4 * loss
    trained = model()
    trained.fit(x, y, verbose=0)
    trained.layers[0].kernel.assign(np.full((6, 1), COMM.rank + 1.0))
    with pytest.raises(DivergenceError):
        trained.predict(x, verbose=0)


def own_callback_list() -> None:
    """In a loop of the script's own, with a model that was never compiled, or without a model."""
    trained = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    optimizer, history = keras.optimizers.SGD(0.01), keras.callbacks.History()
    callbacks = keras.callbacks.CallbackList([history], model=trained)
    x, y = data()
    callbacks.on_train_begin()
    for epoch in range(2):
        callbacks.on_epoch_begin(epoch)
        callbacks.on_train_batch_begin(0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((trained(x) - y) ** 2)
        optimizer.apply(
            tape.gradient(loss, trained.trainable_variables), trained.trainable_variables
        )
        callbacks.on_train_batch_end(np.int64(0), {"loss": float(loss)})
        callbacks.on_epoch_end(epoch, {"loss": float(loss)})
        callbacks.on_test_batch_begin("the only one")
        callbacks.on_test_batch_end("the only one")
    callbacks.on_train_end()
    assert len(history.history["loss"]) == 2
    empty = keras.callbacks.CallbackList([])
    empty.on_train_begin()
    empty.on_epoch_begin(0)
    empty.on_epoch_end(0, {"loss": 1.0})
    empty.on_train_end()


def custom_strategy_loop() -> None:
    """`tf.distribute`'s contract: losses over the global batch, gradients summed, reduce and gather over workers."""
    import syrtos.keras

    strategy = syrtos.keras.Strategy()
    with strategy.scope():
        trained = model()
        optimizer = keras.optimizers.SGD(0.05)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(30)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        def replica_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                per_sample = tf.square(trained(x) - y)[:, 0]
                loss = tf.nn.compute_average_loss(per_sample, global_batch_size=30)
            variables = trained.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    losses = [float(step(x, y)) for x, y in strategy.experimental_distribute_dataset(dataset)]
    plain = model()
    logs = [plain.train_on_batch(data()[0][i : i + 30], data()[1][i : i + 30]) for i in (0, 30, 60)]
    np.testing.assert_allclose(losses, np.ravel(logs), rtol=1e-5)
    np.testing.assert_allclose(trained.get_weights()[0], plain.get_weights()[0], rtol=1e-5)
    gathered = strategy.gather(tf.fill([2, 1 + COMM.rank], COMM.rank), axis=1)
    assert gathered.shape == (2, sum(range(1, COMM.size + 1)))


def step_of_a_loop(trained: Any) -> Any:
    """A function that makes an update, and returns the loss."""
    optimizer = keras.optimizers.SGD(0.05)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(trained(x) - y))
        optimizer.apply(
            tape.gradient(loss, trained.trainable_variables), trained.trainable_variables
        )
        return loss

    return step


def loop_in_a_graph() -> None:
    """A worker computes its rows; the results are whole, also of a batch that is smaller than the world."""
    trained = model()
    step = step_of_a_loop(trained)
    x, y = data()
    losses = [
        float(step(tf.constant(x[i : i + n]), tf.constant(y[i : i + n])))
        for i, n in ((0, 30), (30, 30), (60, 30), (88, 2))
    ]
    plain = model()
    logs = [
        plain.train_on_batch(x[i : i + n], y[i : i + n])
        for i, n in ((0, 30), (30, 30), (60, 30), (88, 2))
    ]
    np.testing.assert_allclose(losses, np.ravel(logs), rtol=1e-5)
    np.testing.assert_allclose(trained.get_weights()[0], plain.get_weights()[0], rtol=1e-5)
    multiplied = {
        operation.inputs[0].shape[0]
        for program in partitioned(step)
        for operation in program.graph.get_operations()
        if operation.type == "MatMul" and operation.inputs[0].shape[1] == 6
    }
    assert 30 // COMM.size in multiplied, multiplied
    assert 30 not in multiplied, multiplied


class DropsEachRow(keras.layers.Layer):
    """Draws in a loop over the rows, whose iterations TensorFlow makes at once where it may."""

    def call(self, rows: Any, training: bool = False) -> Any:
        return tf.map_fn(lambda row: tf.nn.dropout(row, 0.5), rows) if training else rows


def draws_in_a_loop() -> None:
    keras.utils.set_random_seed(7)
    for fits in (False, True):
        made = keras.Sequential([keras.Input((6,)), DropsEachRow(), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        x, y = data()
        if fits:
            made.fit(x[:60], y[:60], batch_size=10, verbose=0)
        else:
            optimizer = keras.optimizers.SGD(0.1)

            @tf.function
            def step(x: Any, y: Any, made: Any = made, optimizer: Any = optimizer) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((made(x, training=True) - y) ** 2)
                weights = made.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
                return loss

            for begin in range(0, 60, 10):
                step(x[begin : begin + 10], y[begin : begin + 10])
        mine = np.concatenate([np.ravel(weight) for weight in made.get_weights()])
        np.testing.assert_array_equal(mine, COMM.broadcast(mine))


def partitioned(function: Any) -> list[Any]:
    """The traced programs of a loop's function, as this worker runs them."""
    found = record_of(function, loop_functions.LoopRecord).function
    assert found is not None
    emitted: list[Any] = [one.emitted for one in found.programs.values() if one.emitted]
    return [program for one in emitted for program in one._list_all_concrete_functions()]


def loop_on_own_batches() -> None:
    """Where each worker reads its own batches, gradients are averaged over workers, and results are the worker's."""
    trained = model()
    step = step_of_a_loop(trained)
    x, y = data()
    for first in (0, 30, 60):
        mine = slice(first + COMM.rank, first + 30, COMM.size)
        loss = float(step(tf.constant(x[mine]), tf.constant(y[mine])))
    assert not equal_everywhere(loss)
    assert equal_everywhere(trained.get_weights()[0])
    plain = model()
    for first in (0, 30, 60):
        plain.train_on_batch(x[first : first + 30], y[first : first + 30])
    np.testing.assert_allclose(trained.get_weights()[0], plain.get_weights()[0], rtol=1e-5)


def loops_on_rows_of_a_table() -> None:
    """An optimizer that squares single rows, in an eager loop of whole batches and in a function."""
    places, expected = tf.constant([0, 1, 1, 4]), []
    for is_graph in (False, True):
        table = keras.layers.Embedding(6, 3, embeddings_initializer="ones")
        table.build()
        optimizer = keras.optimizers.Adagrad(0.1)

        def step(at: Any, table: Any = table, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(table(at) ** 2)
            optimizer.apply(
                tape.gradient(loss, table.trainable_variables), table.trainable_variables
            )

        called = tf.function(step) if is_graph else step
        for _ in range(2):
            called(places)
        expected.append(table.get_weights()[0])
    # Keras counts both gradients of row 1 as steps of their own.
    first = 1 - 0.1 * 2 / np.sqrt(0.1 + 4)
    accumulated = 4.1 + (2 * first) ** 2
    np.testing.assert_allclose(
        expected[0][0], first - 0.2 * first / np.sqrt(accumulated), rtol=1e-5
    )
    np.testing.assert_allclose(expected[0], expected[1], rtol=1e-5)


def loop_on_an_iterator_of_its_own() -> None:
    """A script that knows its rank may read its own data in the function: equal arguments do not say that batches are."""
    world.current().rank_aware = True
    trained, optimizer = model(), keras.optimizers.SGD(0.05)
    x, y = data()
    mine = tf.data.Dataset.from_tensor_slices((x, y)).shard(COMM.size, COMM.rank)
    batches = iter(mine.batch(30 // COMM.size))

    @tf.function
    def step(factors: Any) -> None:
        x, y = next(batches)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(trained(x) - y)) * tf.reduce_mean(factors)
        optimizer.apply(
            tape.gradient(loss, trained.trainable_variables), trained.trainable_variables
        )

    for _ in range(3):
        step(tf.constant([1.0, 1.0, 1.0]))
    plain = model()
    for first in (0, 30, 60):
        plain.train_on_batch(x[first : first + 30], y[first : first + 30])
    np.testing.assert_allclose(trained.get_weights()[0], plain.get_weights()[0], rtol=1e-5)
    assert equal_everywhere(trained.get_weights()[0])


def functions_keep_their_traces() -> None:
    """Arguments by name and defaults; what is called is what is saved, and traced once."""
    traced: list[int] = []

    class Scale(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([])])
        def __call__(self, x: Any, factor: Any = 2.0) -> Any:
            traced.append(1)
            return x * factor

    scale = Scale()
    assert scale(factor=tf.constant(3.0), x=tf.constant([1.0])).numpy() == [3.0]
    assert scale(tf.constant([1.0])).numpy() == [2.0]
    assert len(traced) == scale.__call__.experimental_get_tracing_count() == 1
    tf.saved_model.save(scale, str(FOLDER / "scale"))
    assert tf.saved_model.load(str(FOLDER / "scale"))(tf.constant([2.0])).numpy() == [4.0]


def loops_of_old_optimizers() -> None:
    x, y = data(12)
    for is_graph in (False, True):
        weight = tf.Variable(tf.ones([6, 1]))
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)

        def step(x: Any, y: Any, weight: Any = weight, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ weight - y))
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

        (tf.function(step) if is_graph else step)(tf.constant(x), tf.constant(y))
        expected = 1 - 0.1 * 2 / 12 * x.T @ (x @ np.ones((6, 1)) - y)
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-4)


def loop_whose_batches_begin_to_differ() -> None:
    trained, optimizer = model(), keras.optimizers.SGD(0.05)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(trained(x))
        optimizer.apply(
            tape.gradient(loss, trained.trainable_variables), trained.trainable_variables
        )

    world.current().rank_aware = False  # a library may have asked
    x, _ = data()
    for _ in range(2):
        step(tf.constant(x))
    with pytest.raises(DataError, match="different data in batch 2"):
        step(tf.constant(x + COMM.rank))


def errors_name_lines_of_the_script() -> None:
    """As plain TensorFlow does: those of `fit`, and those of a loop's function."""

    class Lookup(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * tf.gather(tf.ones(5), tf.cast(x[:, :1] * 0.0 + 9.0, tf.int32))

    failing, inputs = model(Lookup()), tf.constant(data(20)[0])

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(failing(x))
        failing.optimizer.apply(tape.gradient(loss, failing.trainable_variables))

    for train in (lambda: failing.fit(inputs, inputs[:, :1], verbose=0), lambda: step(inputs)):
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            train()
        message = str(raised.value)
        assert f'File "{__file__}", line {Lookup.call.__code__.co_firstlineno + 1}' in message, (
            message
        )


def values_of_a_strategy() -> None:
    """What `tf.distribute` gives each replica is given by rank, and variables hold what their aggregation says after `run`."""
    strategy = tf.distribute.MirroredStrategy()
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(
            [context.replica_id_in_sync_group + 1.0, context.num_replicas_in_sync]
        )
    )
    np.testing.assert_array_equal(
        strategy.run(lambda value: value, args=(values,)), [COMM.rank + 1, COMM.size]
    )
    held = {"SUM": 6, "MEAN": 2, "ONLY_FIRST_REPLICA": 1}  # of 1, 2 and 3
    for dtype in (tf.float32, tf.int64):
        for name, expected in held.items():
            with strategy.scope():
                aggregation = tf.VariableAggregation[name]
                variable = tf.Variable(
                    tf.zeros([], dtype), trainable=False, aggregation=aggregation
                )
            strategy.run(
                lambda value, v=variable: v.assign_add(tf.cast(value[0], v.dtype)), args=(values,)
            )
            assert float(variable) == expected, (name, dtype)


def libraries_that_write_beside_rank_0() -> None:
    """Keras Tuner's and Keras 2's way: every worker saves, those that should not to a folder named by task, removed afterwards."""
    place, trained = FOLDER / "libraries_that_write_beside_rank_0", model()
    extended = tf.distribute.get_strategy().extended
    beside = place if extended.should_checkpoint else place / f"workertemp_{extended._task_id}"
    beside.mkdir(exist_ok=True)
    trained.save_weights(beside / "best.weights.h5")
    if beside != place:
        assert [file.name for file in beside.iterdir()] == ["best.weights.h5"]
        shutil.rmtree(beside)
    trained.load_weights(place / "best.weights.h5")
    COMM.barrier()
    assert [file.name for file in place.iterdir()] == ["best.weights.h5"]


def iterators_that_are_not_tuned() -> None:
    """But where the script asks for it, or TensorFlow makes its maps parallel."""
    asked = tf.data.Options()
    asked.autotune.enabled = True
    options = iterating(lambda dataset: dataset.options().autotune.enabled)
    dataset = tf.data.Dataset.range(8).map(lambda n: n + 1, tf.data.AUTOTUNE)
    assert options(dataset) is False
    assert options(dataset.with_options(asked)) is True
    assert options(dataset.map(lambda n: tf.math.floormod(n, 3)).batch(2)) is None
    assert options(dataset.map(lambda n: n + 1).batch(2)) is False  # a map of microseconds
    assert [int(n) for n in dataset] == list(range(1, 9))


def imports_that_are_put_off() -> None:
    """TensorFlow Lite and scikit-learn's wrappers are there when they are used, and when they are used again."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    assert converter.convert()
    assert tf.compat.v1.lite.Interpreter is tf.lite.Interpreter
    assert issubclass(keras.wrappers.SKLearnRegressor, keras.src.wrappers.sklearn_wrapper.SKLBase)


def evaluated_before_weights_are_loaded() -> None:
    """Evaluation leaves the optimizer unbuilt, as in one process: weights that are loaded then bring no state of another optimizer."""
    path = FOLDER / "evaluated_before_weights_are_loaded" / "trained.weights.h5"
    x, y = data()
    trained, fresh = model(), model()
    for each in (trained, fresh):
        each.compile("adam", "mse")
    trained.fit(x, y, verbose=0)
    trained.save_weights(path)
    fresh.evaluate(x, y, verbose=0)
    fresh.test_on_batch(x, y)
    assert not fresh.optimizer.built
    fresh.load_weights(path)
    assert int(fresh.optimizer.iterations) == 0
    fresh.train_on_batch(x, y)
    assert int(fresh.optimizer.iterations) == 1


class _Counting(keras.metrics.Metric):
    """Counts steps: from 5 when it is made, and from 1 after a reset."""

    def __init__(self) -> None:
        super().__init__(name="counted")
        self.total = self.add_weight(name="total", initializer=lambda *_, **__: 5.0)

    def update_state(self, *_: object, **__: object) -> None:
        self.total.assign_add(1.0)

    def reset_state(self) -> None:
        self.total.assign(1.0)

    def result(self) -> object:
        return self.total + 0.0


def metrics_begin_as_they_are_made() -> None:
    """One process makes metrics in its first step, after they would have been reset."""
    x, y = data()
    made = model()
    made.compile("adam", "mse", metrics=[_Counting()])
    counted = made.fit(x, y, batch_size=len(x) // 2, epochs=2, verbose=0).history["counted"]
    assert counted[0] - counted[1] == 4.0, counted


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        (FOLDER / name).mkdir(exist_ok=True)
        COMM.barrier()
        globals()[name]()
        print("ok", name)
