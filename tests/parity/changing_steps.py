"""Cases whose steps become others while they train, or keep values where no optimizer and no metric sees them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from cases import Logs, case, data, fit, keras, keras3, mlp
from mixed_rows import Stepping

ops: Any = getattr(keras, "ops", None)


@case
def step_that_assigns_weights_by_hand() -> tuple[Any, Logs]:
    """Plain gradient descent without an optimizer."""

    class ByHand(Stepping):
        def train_step(self, data: Any) -> dict[str, Any]:
            loss, gradients = self.gradients(*data)
            for variable, gradient in zip(self.trainable_variables, gradients, strict=True):
                variable.assign_sub(0.1 * gradient)
            return {"loss": loss}

    keras.utils.set_random_seed(41)
    model = ByHand()
    model.compile()
    return fit(model, *data())


@case
def step_of_a_layer_that_call_does_not_use() -> tuple[Any, Logs]:
    """A head of its own for the step, and a batch that `call` can't take."""

    class WithHead(Stepping):
        def __init__(self) -> None:
            super().__init__()
            self.head = keras.layers.Dense(1)

        def train_step(self, data: Any) -> dict[str, Any]:
            (x, other), y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                loss += 0.1 * tf.reduce_mean(tf.square(self.head(self.first(other)) + y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    keras.utils.set_random_seed(42)
    model = WithHead()
    model.compile(keras.optimizers.SGD(0.05))
    x, y = data()
    rows = tf.data.Dataset.from_tensor_slices(((x, x[::-1].copy()), y)).batch(32)
    history = model.fit(rows, epochs=5, verbose=0)
    return model, dict(history.history)


def _spread(outputs: Any) -> Any:
    return tf.math.reduce_variance(outputs)


@case
def term_that_begins_with_an_epoch() -> tuple[Any, Logs]:
    """A term over the batch, whose weight a callback raises from 0."""

    class Annealed(Stepping):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(tf.zeros(()), trainable=False)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = tf.reduce_mean(tf.square(outputs - y)) + self.weight * tf.square(
                    _spread(outputs) - 1.0
                )
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    class Raise(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.weight.assign(0.2 * epoch)

    keras.utils.set_random_seed(43)
    model = Annealed()
    model.compile(keras.optimizers.SGD(0.05))
    return fit(model, *data(), callbacks=[Raise()])


@case
def step_that_decides_by_its_loss() -> tuple[Any, Logs]:
    """A floor under a mean and a spike that is skipped, which the first batches do not reach, while some workers' rows would."""

    class Deciding(Stepping):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                floored = tf.maximum(loss, 0.35)
            gradients = tape.gradient(floored, self.trainable_variables)
            factor = tf.where(loss > 8.0, 0.0, 1.0)
            gradients = [factor * gradient for gradient in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    keras.utils.set_random_seed(46)
    x, y = data()
    x[130:160] *= 6.0
    model = Deciding()
    model.compile(keras.optimizers.Adam(0.01))
    return fit(model, x, y, epochs=6)


@case
def term_of_each_third_step() -> tuple[Any, Logs]:
    """A lazy penalty, in a branch that also assigns what no other step does."""

    class Lazy(Stepping):
        def __init__(self) -> None:
            super().__init__()
            self.number = tf.Variable(tf.zeros((), tf.int64), trainable=False)
            self.usual = tf.Variable(tf.ones(()), trainable=False)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data

            def penalty() -> Any:
                spread = _spread(self(x, training=True))
                self.usual.assign(0.9 * self.usual + 0.1 * tf.stop_gradient(spread))
                return 0.1 * tf.square(spread - self.usual)

            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                loss += tf.cond(tf.equal(tf.math.floormod(self.number, 3), 2), penalty, lambda: 0.0)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.number.assign_add(1)
            return {"loss": loss}

    keras.utils.set_random_seed(44)
    model = Lazy()
    model.compile(keras.optimizers.SGD(0.05))
    model, logs = fit(model, *data())
    return model, {**logs, "usual": [float(model.usual.numpy())]}


@case
def numbers_in_variables_that_count_as_trainable() -> tuple[Any, Logs]:
    """Numbers of the batch in variables that nobody called untrainable; on the rows of the first batches they stay 0."""

    class Adapting(Stepping):
        def __init__(self) -> None:
            super().__init__()
            self.plain = tf.Variable(tf.zeros(()))
            self.of_keras = self.add_weight(shape=(), initializer="zeros", name="of_keras")

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            weights = [*self.first.trainable_variables, *self.second.trainable_variables]
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            for variable in (self.plain, self.of_keras):
                variable.assign(tf.maximum(variable + 0.1 * tf.reduce_mean(x[:, 0]), 0.0))
            return {"loss": loss}

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append([float(np.asarray(v)) for v in (self.model.plain, self.model.of_keras)])

    seen: list[list[float]] = []
    keras.utils.set_random_seed(49)
    x, y = data()
    x[: 5 * 32, 0] = -np.abs(x[: 5 * 32, 0]) - 1.0
    model = Adapting()
    model.compile(keras.optimizers.SGD(0.05))
    model, logs = fit(model, x, y, callbacks=[Note()])
    plain, of_keras = zip(*seen, strict=True)
    return model, {**logs, "plain": list(plain), "of_keras": list(of_keras)}


@case
def first_batch_of_one_row() -> tuple[Any, Logs]:
    """One row shows nothing of a step that mixes rows: those after it do."""

    class Spreading(Stepping):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = tf.reduce_mean(tf.square(outputs - y)) + tf.square(
                    tf.reduce_mean(outputs) - 1.0
                )
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    keras.utils.set_random_seed(45)
    x, y = data()
    model = Spreading()
    model.compile(keras.optimizers.SGD(0.05))
    one = tf.data.Dataset.from_tensor_slices((x[:1], y[:1])).batch(1)
    rest = tf.data.Dataset.from_tensor_slices((x[1:], y[1:])).batch(32)
    history = model.fit(one.concatenate(rest), epochs=5, verbose=0)
    return model, dict(history.history)


@case
def data_of_unknown_length() -> tuple[Any, Logs]:
    """Each epoch ends in a step that finds no data, which Adam counts as an update all the same."""

    class Own(Stepping):
        def train_step(self, data: Any) -> dict[str, Any]:
            loss, gradients = self.gradients(*data)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

        def test_step(self, data: Any) -> dict[str, Any]:
            return {"largest": tf.reduce_max(self(data[0])) - tf.reduce_mean(data[1])}

    keras.utils.set_random_seed(48)
    model = Own()
    model.compile(keras.optimizers.Adam(0.01))
    records = tf.data.Dataset.from_tensor_slices(data())
    empty = records.filter(lambda *row: False).batch(32)
    rows = records.filter(lambda *row: True).batch(32)
    logs = {**model.fit(rows, epochs=5, verbose=0).history}
    logs["updates"] = [float(model.optimizer.iterations.numpy())]
    # A first call without data shows nothing of the step.
    model.evaluate(empty, verbose=0)
    return model, {**logs, "tested": [model.evaluate(rows, verbose=0, return_dict=True)["largest"]]}


@keras3
def states_and_numbers_of_rare_rows() -> tuple[Any, Logs]:
    """Counts and maxima of rows of which the first batch has none."""

    class Guard(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            zero = {"shape": (), "initializer": "zeros", "trainable": False}
            self.outliers, self.peak = (
                self.add_weight(**zero, name="outliers"),
                self.add_weight(**zero, name="peak"),
            )

        def call(self, x: Any) -> Any:
            far = ops.abs(x) > 5.0
            self.outliers.assign(self.outliers + ops.sum(ops.cast(far, "float32")))
            self.peak.assign(ops.maximum(self.peak, ops.max(ops.where(far, ops.abs(x), 0.0))))
            return ops.clip(x, -5.0, 5.0)

    keras.utils.set_random_seed(46)
    x, y = data()
    x[[100, 200, 201]] *= 10.0
    guard = Guard()
    model = keras.Sequential(
        [keras.Input((12,)), guard, keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model, logs = fit(model, x, y)
    return model, {
        **logs,
        "seen": [
            float(ops.convert_to_numpy(guard.outliers)),
            float(ops.convert_to_numpy(guard.peak)),
        ],
    }


class _Meter:
    """An object of the script's own, with a state that no variable has."""

    def __init__(self) -> None:
        self.calls, self.norms, self.generator = 0, [], np.random.default_rng(5)

    def noise(self) -> float:
        self.calls += 1
        return float(self.generator.normal())


@case
def step_with_a_state_in_python() -> tuple[Any, Logs]:
    class Noting(Stepping):
        def __init__(self) -> None:
            super().__init__()
            self.meter = _Meter()

        def train_step(self, data: Any) -> dict[str, Any]:
            loss, gradients = self.gradients(*data)
            self.meter.norms.append(float(tf.linalg.global_norm(gradients)))
            scale = 1.0 + 0.1 * self.meter.noise()
            gradients = [scale * gradient for gradient in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "calls": float(self.meter.calls)}

    keras.utils.set_random_seed(47)
    model = Noting()
    model.compile(keras.optimizers.SGD(0.05), run_eagerly=True)
    model, logs = fit(model, *data(), epochs=2)
    return model, {**logs, "norms": list(model.meter.norms)}


@case
def training_function_of_its_own() -> tuple[Any, Logs]:
    """A model that makes what `fit` calls for each batch."""

    class Own(keras.Model):
        def make_train_function(self, force: bool = False) -> Any:
            @tf.function
            def train(iterator: Any) -> dict[str, Any]:
                x, y = next(iterator)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(
                    zip(gradients, self.trainable_variables, strict=True)
                )
                return {"loss": loss}

            self.train_function = train
            return train

    keras.utils.set_random_seed(48)
    inner = mlp()
    inputs = keras.Input((12,))
    model = Own(inputs, inner(inputs))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    x, y = data()
    model, logs = fit(model, x, y)
    return model, {**logs, "evaluated": [float(model.evaluate(x, y, verbose=0))]}


@case
def step_that_draws_from_an_iterator_of_its_own() -> tuple[Any, Logs]:
    """Each step takes the next rows without targets; the comparison of the first batch must not take any away."""
    x, y = data()

    class SemiSupervised(Stepping):
        def __init__(self) -> None:
            super().__init__()
            numbered = tf.data.Dataset.from_tensor_slices((x[::-1].copy(), np.arange(len(x))))
            self.unlabelled = iter(numbered.batch(8).repeat())

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            other, numbers = next(self.unlabelled)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                loss += 0.1 * tf.reduce_mean(tf.square(self(other, training=True)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "first_number": tf.cast(numbers[0], tf.float32)}

    keras.utils.set_random_seed(51)
    model = SemiSupervised()
    model.compile(keras.optimizers.SGD(0.05))
    return fit(model, x, y)


class TrainsItself(keras.layers.Layer):
    """A layer that is built by its first call, and has an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.own = keras.optimizers.Adam(0.03)

    def call(self, rows: Any) -> Any:
        return self.dense(rows)


@case
def compiled_step_of_layers_that_train_themselves() -> tuple[Any, Logs]:
    """Variables are made while a `tf.function` is traced, also in the comparison of the first batch."""

    class Network(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [TrainsItself(), TrainsItself()]

        @tf.function
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            losses = []
            for part in self.parts:
                with tf.GradientTape() as tape:
                    loss = tf.sqrt(tf.reduce_mean(tf.square(part(x) - y)))
                weights = part.trainable_variables
                part.own.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
                losses.append(loss)
            return {"loss": sum(losses)}

    keras.utils.set_random_seed(53)
    model = Network()
    model.compile()
    return fit(model, *data())


@keras3
def recurrent_layers() -> tuple[Any, Logs]:
    """On JAX each device scans its own rows, but those of uneven batches and of cells of the script's own."""

    class Cell(keras.layers.SimpleRNNCell):
        def call(self, sequence: Any, states: Any, training: bool = False) -> Any:
            out, states = super().call(sequence, states, training=training)
            return out * 0.9, states

    layers = keras.layers
    keras.utils.set_random_seed(59)
    x, y = data()
    x = np.where(x > 1.0, 0.0, x)[..., None]  # steps of zeros are masked
    model = keras.Sequential(
        [
            keras.Input((12, 1)),
            layers.Masking(),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
            layers.RNN([layers.GRUCell(4), layers.SimpleRNNCell(3)], return_sequences=True),
            layers.RNN(Cell(3), return_sequences=True),
            layers.GRU(4),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", metrics=["mae"])
    return fit(model, x, y, epochs=3)


@keras3
def term_that_begins_between_steps() -> tuple[Any, Logs]:
    """A callback raises the weight of a term that mixes rows, in the middle of an epoch; it is 0 before."""

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.layers.Dense(9, activation="tanh"), keras.layers.Dense(1)]
            self.beta = keras.Variable(0.0, trainable=False)

        def call(self, rows: Any) -> Any:
            return self.parts[1](self.parts[0](rows))

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, *others: Any, **named: Any
        ) -> Any:
            ops = keras.ops
            spread = ops.std(y_pred, axis=0)
            return ops.mean(ops.square(ops.reshape(y, (-1, 1)) - y_pred)) + self.beta * ops.sum(
                spread
            )

    class Raises(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if self.steps == 16:
                self.model.beta.assign(0.5)

    keras.utils.set_random_seed(61)
    model = Model()
    model.compile("sgd")
    return fit(model, *data(), callbacks=[Raises()])


@keras3
def layer_that_adds_a_loss_of_rows() -> tuple[Any, Logs]:
    """What Keras notes of `add_loss` is a share's, and in the loss."""

    class Penalty(keras.layers.Layer):
        def call(self, rows: Any) -> Any:
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(rows)))
            return rows

    keras.utils.set_random_seed(67)
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(6), Penalty(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return fit(model, *data())


@keras3
def draws_that_are_made_once_for_a_batch() -> tuple[Any, Logs]:
    """A factor of a batch, a mask of weights, and noise for gradients in an optimizer: one process draws each of them once."""

    class Drawing(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)
            self.weight = self.add_weight(shape=(12, 7), initializer="ones")

        def call(self, rows: Any) -> Any:
            masked = keras.random.dropout(
                keras.ops.convert_to_tensor(self.weight), 0.5, seed=self.seeds
            )
            return (rows * keras.random.uniform((), seed=self.seeds)) @ masked

    class Noisy(keras.optimizers.SGD):
        def __init__(self) -> None:
            super().__init__(0.02)
            self.seeds = keras.random.SeedGenerator(4)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            noise = 0.1 * keras.random.normal(variable.shape, seed=self.seeds)
            super().update_step(gradient + noise, variable, learning_rate)

    keras.utils.set_random_seed(71)
    model = keras.Sequential([keras.Input((12,)), Drawing(), keras.layers.Dense(1)])
    model.compile(Noisy(), "mse")
    return fit(model, *data())


@keras3
def operations_of_a_model_inside_of_another() -> tuple[Any, Logs]:
    """A functional model that compares its rows with their largest is a layer of another model."""
    keras.utils.set_random_seed(72)
    given = keras.Input((12,))
    rows = keras.layers.Dense(6, use_bias=False)(given)  # a bias would have no gradient
    # Not with their mean, which Keras takes in float32 on JAX, whatever it computes in.
    inner = keras.Model(given, rows - ops.max(rows, axis=0, keepdims=True))
    model = keras.Sequential([keras.Input((12,)), inner, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return fit(model, *data())


@keras3
def loss_that_wraps_one_of_keras() -> tuple[Any, Logs]:
    """It has the name and the module of the function that it wraps, and divides by a number of the batch."""

    @functools.wraps(keras.losses.mean_squared_error)
    def masked(y_true: Any, y_pred: Any) -> Any:
        valid = ops.cast(ops.reshape(y_true, (-1, 1)) > 0.0, y_pred.dtype)
        squares = ops.square(ops.reshape(y_true, (-1, 1)) - y_pred)
        return ops.sum(valid * squares) / (ops.sum(valid) + 1.0)

    keras.utils.set_random_seed(73)
    model = mlp()
    model.compile("sgd", masked)
    return fit(model, *data())


@keras3
def rows_of_a_table_that_stand_once() -> tuple[Any, Logs]:
    """A layer gathers each row of its table once, by `tf.unique`, and Adam squares what it gets for that row."""

    class Unique(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.table = self.add_weight(shape=(9, 4), initializer="glorot_uniform")

        def call(self, rows: Any) -> Any:
            numbers = tf.cast(tf.abs(rows[:, :3]) * 3.0, tf.int64) % 9
            found, places = tf.unique(tf.reshape(numbers, [-1]))
            gathered = tf.gather(tf.gather(self.table, found), places)
            return tf.reduce_sum(tf.reshape(gathered, [-1, 3, 4]), axis=1)

    keras.utils.set_random_seed(74)
    model = keras.Sequential([keras.Input((12,)), Unique(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse")
    return fit(model, *data())
