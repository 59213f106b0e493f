"""Training runs whose every number must be the same for one process and for N workers.

Each case is a plain Keras script in a function: it builds, trains at least 50 steps, and returns what it logged. Nothing here knows
about workers; `runner` runs a case as it is, alone or under `syrtos run`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import syrtos.data

# untyped: one of two packages whose annotations disagree
keras: Any = importlib.import_module(
    "tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") else "keras"
)

Logs = dict[str, Any]
Case = Callable[[], tuple[Any, Logs]]

CASES: dict[str, Case] = {}
# Cases that Keras 2 can't run, or defines otherwise.
KERAS3_ONLY: set[str] = set()
# Half precision rounds shares of a sum differently; the bound of the others is 1e-5.
TOLERANCE: dict[str, float] = {
    "mixed_float16": 3e-2,
    "mixed_bfloat16": 5e-2,
    "every_optimizer": 1e-6,
    "optimizers_with_options": 1e-6,
    "metric_of_extremes": 1e-5,
    # On JAX too they compute something in float32.
    "layer_that_centers_a_batch": 1e-5,
    "layers_that_count_and_remember": 1e-5,
    "loss_and_metric_of_one_number": 1e-5,
    "loss_class_with_a_call_of_its_own": 3e-5,
    "loss_with_negatives_of_the_batch": 1e-5,
    "losses_of_keras_that_mix_rows": 1e-5,
    "masked_loss_and_accuracy": 1e-5,
    "optimizer_of_its_own": 1e-5,
    "step_with_a_state_in_python": 5e-5,  # of a bias near zero
    "layer_that_adds_a_loss_of_rows": 1e-5,
    "stateful_layer": 1e-5,
    "term_that_begins_between_steps": 1e-5,
}


def case(function: Case) -> Case:
    """Registers a case under its name."""
    CASES[function.__name__] = function
    return function


def keras3(function: Case) -> Case:
    """Registers a case for Keras 3 alone."""
    KERAS3_ONLY.add(function.__name__)
    return case(function)


# -- material -----------------------------------------------------------------------------------------


def data(
    samples: int = 333, features: int = 12
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A regression that needs more than one layer; 333 samples: no batch size divides them."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(samples, features)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(features, 1))) + 0.3 * x[:, :1] * x[:, 1:2]
    return x, y.astype("float32")


def classes(samples: int = 333) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x, y = data(samples)
    return x, np.digitize(y[:, 0], [-0.6, 0.6]).astype("int32")


def mlp(outputs: int = 1, activation: str | None = None, **first: Any) -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((12,)),
            keras.layers.Dense(24, activation="tanh", **first),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(outputs, activation=activation),
        ]
    )


def fit(model: Any, *args: Any, epochs: int = 5, **kwargs: Any) -> tuple[Any, Logs]:
    """Trains quietly; 333 samples in batches of 32 are 11 steps, so 5 epochs are 55."""
    history = model.fit(
        *args, epochs=epochs, verbose=0, **{"batch_size": 32, "shuffle": False, **kwargs}
    )
    return model, dict(history.history)


def regression(optimizer: Any = None, loss: Any = "mse", **kwargs: Any) -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp()
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["mae"])
    return fit(model, *data(), **kwargs)


# -- models ---------------------------------------------------------------------------------------------


@case
def sequential() -> tuple[Any, Logs]:
    return regression()


@case
def shuffled() -> tuple[Any, Logs]:
    return regression(shuffle=True)


@case
def functional_two_inputs_two_outputs() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(4)
    left, right = keras.layers.Input((6,), name="left"), keras.layers.Input((6,), name="right")
    joined = keras.layers.Concatenate()(
        [keras.layers.Dense(8, "relu")(left), keras.layers.Dense(8, "tanh")(right)]
    )
    value = keras.layers.Dense(1, name="value")(joined)
    kind = keras.layers.Dense(3, "softmax", name="kind")(joined)
    model = keras.Model([left, right], {"value": value, "kind": kind})
    losses = {"value": "mse", "kind": "sparse_categorical_crossentropy"}
    model.compile(
        keras.optimizers.SGD(0.1),
        losses,
        loss_weights={"value": 0.3, "kind": 1.0},
        metrics={"kind": ["accuracy"], "value": ["mae"]},
    )
    (x, y), (_, k) = data(), classes()
    return fit(model, [x[:, :6], x[:, 6:]], {"value": y, "kind": k})


class Residual(keras.Model):
    """A subclassed model, built by its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [keras.layers.Dense(12, "tanh") for _ in range(2)]
        self.last = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        for layer in self.hidden:
            x = x + layer(x)
        return self.last(x)


@case
def subclassed() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(5)
    model = Residual()
    model.compile(keras.optimizers.SGD(0.02), "mse", metrics=["mae"])
    return fit(model, *data())


class OwnStep(Residual):
    """A custom `train_step` over `compute_loss`."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"own_loss": loss}


@case
def custom_train_step() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(5)
    model = OwnStep()
    model.compile(keras.optimizers.SGD(0.02), "mse")
    return _last_logs(model)


class BareStep(Residual):
    """A custom `train_step` that computes its loss without Keras."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"own_loss": loss}


class SummingStep(OwnStep):
    """A custom `train_step` that adds up a number for each batch."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.total.update_state(loss)
        self.batches.update_state(1.0)
        return {"total": self.total.result(), "batches": self.batches.result()}


@case
def custom_train_step_with_sums() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(5)
    model = SummingStep()
    model.total, model.batches = keras.metrics.Sum(name="total"), keras.metrics.Sum(name="batches")
    model.compile(keras.optimizers.SGD(0.02), "mse")
    return fit(model, *data())


@case
def custom_train_step_without_keras_loss() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(5)
    model = BareStep()
    model.compile(keras.optimizers.SGD(0.02))
    return _last_logs(model)


def _last_logs(model: Any) -> tuple[Any, Logs]:
    """Without metrics an epoch logs what its last step returned: here of 13 samples."""
    return fit(model, *data())


class CompiledStep(Residual):
    """A custom `train_step` that is a `tf.function`, calls another one, and keeps a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="tracked")

    @tf.function
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        self.apply(tape.gradient(loss, self.trainable_variables))
        self.tracker.update_state(tf.reduce_mean(tf.abs(self(x) - y), axis=-1))
        return {"own_loss": loss, "tracked": self.tracker.result()}

    @tf.function
    def apply(self, grads: Any) -> None:
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


@case
def custom_train_step_in_tf_function() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(5)
    model, optimizer = CompiledStep(), keras.optimizers.SGD(0.02)
    model.compile(optimizer, "mse")
    fit(model, *data(), epochs=2)
    # Keras 2: the function was traced with metrics that `compile` replaces; TensorFlow refuses to call it once they are collected.
    kept = getattr(model, "compiled_loss", None)
    model.compile(optimizer, "mse")
    _, logs = fit(model, *data(), epochs=3)
    kept = (kept, getattr(model, "compiled_loss", None))
    model.compile(optimizer, "mse", run_eagerly=True)
    logs = {**logs, "eager": fit(model, *data(), epochs=1)[1]["tracked"]}
    del kept
    return model, logs


class TwoOptimizers(keras.Model):
    """As in a GAN: two parts, two optimizers, metrics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(12, "tanh"), keras.layers.Dense(1)
        self.optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05)]
        self.tracker = keras.metrics.Mean(name="tracked")

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            error = tf.reduce_mean(tf.abs(self(x) - y))
        for optimizer, layer in zip(self.optimizers, (self.first, self.second), strict=True):
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(error, variables), variables, strict=True))
        self.tracker.update_state(error)
        return {"tracked": self.tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


@case
def custom_train_step_two_optimizers() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(6)
    model = TwoOptimizers()
    model.build((None, 12))
    model.compile()
    return fit(model, *data())


@case
def run_eagerly() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], run_eagerly=True)
    return fit(model, *data())


# -- input ----------------------------------------------------------------------------------------------


@case
def tf_data_shuffled() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp()
    model.compile("adam", "mse", metrics=["mae"])
    dataset = tf.data.Dataset.from_tensor_slices(data()).shuffle(333, seed=1).batch(32).prefetch(2)
    history = model.fit(dataset, epochs=5, verbose=0)
    return model, dict(history.history)


class Batches(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):
    """Batches of different sizes, in a new order each epoch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rng = np.random.default_rng(11)
        self.order = self.rng.permutation(333)

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        x, y = data()
        chosen = self.order[
            index * 30 : index * 30 + 33 - 4 * (index % 3)
        ]  # few sizes: JAX compiles for each
        return x[chosen], y[chosen]

    def on_epoch_end(self) -> None:
        self.order = self.rng.permutation(333)


@case
def py_dataset() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp()
    model.compile("adam", "mse", metrics=["mae"])
    history = model.fit(Batches(), epochs=5, verbose=0, shuffle=False)
    return model, dict(history.history)


def _batches() -> Iterator[Any]:
    x, y = data()
    rng = np.random.default_rng(2)
    while True:
        chosen = rng.integers(
            0, 333, size=rng.choice([1, 2, 7, 16, 39])
        )  # few sizes: JAX compiles for each
        yield x[chosen], y[chosen]


@case
def generator() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp()
    model.compile("adam", "mse", metrics=["mae"])
    history = model.fit(_batches(), steps_per_epoch=11, epochs=5, verbose=0)
    return model, dict(history.history)


@case
def validation_split() -> tuple[Any, Logs]:
    return regression(validation_split=0.3, epochs=8)


@case
def validation_data_uneven() -> tuple[Any, Logs]:
    """Padded validation would count samples twice."""
    x, y = data(77)
    return regression(validation_data=(x, y), validation_batch_size=30)


@case
def last_batch_of_seven() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    x, y = data(327)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return fit(model, x, y)


@case
def last_batch_of_one() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    x, y = data(321)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return fit(model, x, y)


@case
def draws_where_batches_have_fewer_rows_than_workers() -> tuple[Any, Logs]:
    """Batches of 12 and one of 1, then of 8 and one of 1: draws that count by graph go on as in one process."""
    keras.utils.set_random_seed(3)
    x, y = data(25)
    layers = [keras.layers.Dense(24), keras.layers.Dropout(0.3), keras.layers.GaussianNoise(0.1)]
    model = keras.Sequential([keras.layers.Input((12,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    fit(model, x, y, batch_size=12, epochs=2)
    return fit(model, x, y, batch_size=8, epochs=2)


@case
def batches_of_one() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return fit(model, *data(60), batch_size=1, epochs=1)


@keras3
def batches_of_one_with_a_static_size() -> tuple[Any, Logs]:
    """Models that are built from the shapes of a batch know its size."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input(batch_shape=(1, 12)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return fit(
        model,
        tf.data.Dataset.from_tensor_slices(data(60)).batch(1, drop_remainder=True),
        epochs=1,
        batch_size=None,
        shuffle=None,
    )


def _of_words(count: int) -> tuple[Any, tuple[Any, Any]]:
    """A model that refuses "" and zeros, and so many rows."""
    keras.utils.set_random_seed(3)
    words = np.array([["a", "b", "c"][k % 3] for k in range(count)], object)
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"], num_oov_indices=0)
    word = keras.layers.Input((), dtype="string")
    value = keras.layers.Dense(1)(keras.layers.Embedding(3, 4)(lookup(word)))
    model = keras.Model(word, value)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model, (words, data(count)[1])


@keras3
def words_without_unknown_ones() -> tuple[Any, Logs]:
    """The last batch is too small for all workers."""
    model, rows = _of_words(61)
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(4)
    model, logs = fit(model, batches, batch_size=None, shuffle=None)
    return model, logs | {
        "evaluated": model.evaluate(batches, verbose=0),
        "predicted": model.predict(batches, verbose=0),
    }


@case
def words_on_batch() -> tuple[Any, Logs]:
    """Each batch is too small for all workers."""
    model, (words, y) = _of_words(6)
    rows = [(tf.constant(words[k : k + 1]), y[k : k + 1]) for k in range(6)]
    return model, {
        "loss": [float(model.train_on_batch(*row)[0]) for row in rows],
        "tested": [float(model.test_on_batch(*row)[1]) for row in rows],
        "predicted": np.concatenate([model.predict_on_batch(row[0]) for row in rows])
        .ravel()
        .tolist(),
    }


@keras3
def planned_words() -> tuple[Any, Logs]:
    """The same with a planned order: each batch has one record."""
    model, (words, y) = _of_words(7)
    return fit(
        model, syrtos.data.from_arrays(words, y, batch_size=1), batch_size=None, shuffle=None
    )


@keras3
def sparse_batches() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    x, y = data(61)
    sparse = tf.sparse.from_dense(np.where(x > 0.5, x, 0))
    model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return fit(
        model,
        tf.data.Dataset.from_tensor_slices((sparse, y)).batch(4),
        batch_size=None,
        shuffle=None,
    )


@case
def class_weight() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp(3, "softmax")
    model.compile(
        "adam",
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
    )
    return fit(model, *classes(), class_weight={0: 0.5, 1: 1.0, 2: 3.0})


@case
def sample_weight() -> tuple[Any, Logs]:
    return regression(sample_weight=np.linspace(0.0, 3.0, 333).astype("float32"))


@case
def compiled_by_xla_after_all() -> tuple[Any, Logs]:
    """XLA is asked for after `compile`, and for a model that is never compiled."""
    keras.utils.set_random_seed(3)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    model.jit_compile = True
    model, logs = fit(model, *data())
    other = mlp()
    other.set_weights(model.get_weights())
    other.jit_compile = True
    return model, logs | {"predicted": other.predict(data()[0], verbose=0)}


@case
def steps_per_execution() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], steps_per_execution=4)
    return fit(model, *data(), validation_split=0.2, epochs=7)


@case
def train_on_batch() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp()
    model.compile("adam", "mse", metrics=["mae"])
    x, y = data()
    losses = [
        model.train_on_batch(x[i : i + 6], y[i : i + 6], return_dict=True) for i in range(0, 330, 6)
    ]
    tested = model.test_on_batch(x[:7], y[:7], return_dict=True)
    predicted = model.predict_on_batch(x[:5])
    return model, {
        "loss": [log["loss"] for log in losses],
        "tested": [tested["mae"]],
        "predicted": predicted.ravel().tolist(),
    }


@case
def evaluate_and_predict() -> tuple[Any, Logs]:
    model, logs = regression()
    x, y = data(101)
    logs |= {
        f"evaluated_{k}": [v]
        for k, v in model.evaluate(x, y, batch_size=30, verbose=0, return_dict=True).items()
    }
    logs["predicted"] = model.predict(x, batch_size=30, verbose=0).ravel().tolist()
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(7)
    logs["predicted_from_dataset"] = model.predict(dataset, verbose=0).ravel().tolist()
    return model, logs


# -- losses ---------------------------------------------------------------------------------------------


@case
def loss_sum() -> tuple[Any, Logs]:
    return regression(keras.optimizers.SGD(0.001), keras.losses.MeanSquaredError(reduction="sum"))


@keras3
def loss_mean_with_sample_weight() -> tuple[Any, Logs]:
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return regression(loss=loss, sample_weight=np.linspace(0.1, 3.0, 333).astype("float32"))


@case
def layers_that_are_used_several_times() -> tuple[Any, Logs]:
    """Gradients of a weight are sums of several, of penalties too, in the same order on all workers."""
    keras.utils.set_random_seed(21)
    rng = np.random.default_rng(21)
    x = rng.normal(size=(333, 7, 5)).astype("float32")
    model = keras.Sequential(
        [
            keras.layers.Input((7, 5)),
            keras.layers.TimeDistributed(
                keras.layers.Dense(
                    4, "tanh", kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-3)
                )
            ),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return fit(model, x, x[:, 0, :1])


@keras3
def masked_sequences() -> tuple[Any, Logs]:
    """Shares of a batch hold different numbers of unmasked steps."""
    keras.utils.set_random_seed(8)
    rng = np.random.default_rng(8)
    tokens = rng.integers(1, 50, size=(333, 10))
    tokens[np.arange(10) >= rng.integers(1, 11, size=(333, 1))] = 0
    model = keras.Sequential(
        [
            keras.layers.Embedding(50, 8, mask_zero=True),
            keras.layers.SimpleRNN(8, return_sequences=True),
            keras.layers.Dense(50),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, weighted_metrics=["accuracy"])
    model, logs = fit(model, tokens, np.roll(tokens, -1, axis=1))
    weights = rng.uniform(size=tokens.shape).astype("float32")
    model, weighted = fit(model, tokens, np.roll(tokens, -1, axis=1), sample_weight=weights)
    return model, logs | {f"weighted {name}": values for name, values in weighted.items()}


@case
def regularizers() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    model = mlp(kernel_regularizer="l2", bias_regularizer=keras.regularizers.L1(0.01))
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return fit(model, *data())


class Penalty(keras.layers.Layer):
    """A loss that a layer adds: a mean over its batch."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * tf.reduce_mean(tf.square(x)))
        return x


@case
def added_loss() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    inputs = keras.layers.Input((12,))
    model = keras.Model(
        inputs, keras.layers.Dense(1)(Penalty()(keras.layers.Dense(8, "tanh")(inputs)))
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return fit(model, *data())


@case
def metrics_of_ratios() -> tuple[Any, Logs]:
    """Means of these over workers would be wrong."""
    keras.utils.set_random_seed(3)
    x, y = data()
    labels = (y > 0).astype("float32")
    names = [
        keras.metrics.AUC(),
        keras.metrics.Precision(),
        keras.metrics.Recall(),
        keras.metrics.F1Score(threshold=0.5),
    ]
    model = mlp(1, "sigmoid")
    model.compile("adam", "binary_crossentropy", metrics=[*names, keras.metrics.MeanSquaredError()])
    return fit(model, x, labels, validation_data=(x[:77], labels[:77]))


# -- optimizers -----------------------------------------------------------------------------------------


@case
def clipnorm() -> tuple[Any, Logs]:
    return regression(keras.optimizers.SGD(0.3, clipnorm=0.05))


@case
def global_clipnorm() -> tuple[Any, Logs]:
    return regression(keras.optimizers.SGD(0.3, global_clipnorm=0.1))


@case
def clipvalue() -> tuple[Any, Logs]:
    return regression(keras.optimizers.SGD(0.3, clipvalue=0.02))


@case
def weight_decay() -> tuple[Any, Logs]:
    return regression(keras.optimizers.AdamW(0.005, weight_decay=0.1))


@case
def ema() -> tuple[Any, Logs]:
    return regression(
        keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=7)
    )


@case
def learning_rate_schedule() -> tuple[Any, Logs]:
    return regression(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 60)))


def _optimizers_with_options() -> dict[str, Any]:
    optimizers, schedule = (
        keras.optimizers,
        keras.optimizers.schedules.ExponentialDecay(0.01, 4, 0.7),
    )
    return {
        "AMSGrad": optimizers.Adam(0.01, amsgrad=True, clipnorm=0.5),
        "AdamW": optimizers.AdamW(
            schedule, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3
        ),
        "centered": optimizers.RMSprop(0.01, centered=True, momentum=0.5, weight_decay=0.1),
        "nesterov": optimizers.SGD(
            schedule, momentum=0.9, nesterov=True, gradient_accumulation_steps=2, weight_decay=0.1
        ),
        "scaled": optimizers.LossScaleOptimizer(optimizers.Adam(0.01), initial_scale=64.0),
    }


def _trained_by_each(chosen: dict[str, Any]) -> tuple[Any, Logs]:
    """A model with a table, some of whose rows are trained, by each of the optimizers from the same weights."""
    logs: Logs = {}
    model, (x, y) = mlp(), data(97)
    for name, optimizer in chosen.items():
        keras.utils.set_random_seed(3)
        words = keras.Input((2,), dtype="int32")
        table = keras.layers.Flatten()(keras.layers.Embedding(20, 6)(words))
        model = keras.Model(
            [words, features := keras.Input((12,))], mlp()(features) + keras.layers.Dense(1)(table)
        )
        model.compile(optimizer, "mse")
        _, found = fit(model, [np.arange(2 * len(x)).reshape(-1, 2) % 20, x], y, epochs=2)
        logs |= {f"{name} {key}": value for key, value in found.items()}
        logs[f"{name} weights"] = [float(np.linalg.norm(weight)) for weight in model.get_weights()]
    return model, logs


@keras3
def every_optimizer() -> tuple[Any, Logs]:
    """Each of Keras's own, with its default options."""
    names = [
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "Adamax",
        "Ftrl",
        "Lamb",
        "Lion",
        "Muon",
        "Nadam",
        "RMSprop",
    ]
    return _trained_by_each({name: getattr(keras.optimizers, name)(0.01) for name in names})


@keras3
def optimizers_with_options() -> tuple[Any, Logs]:
    """What else an update may do."""
    return _trained_by_each(_optimizers_with_options())


@keras3
def gradient_accumulation() -> tuple[Any, Logs]:
    """Four steps make an update; 55 steps leave three over."""
    return regression(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4, clipnorm=0.1))


class OwnSGD(keras.optimizers.SGD):
    """A class of the script's, which sees the gradients of each step: they are reduced before it does."""


@keras3
def gradient_accumulation_by_an_optimizer_of_its_own() -> tuple[Any, Logs]:
    """Each epoch leaves steps over; a second `fit` goes on with them."""
    model, _ = regression(OwnSGD(0.1, gradient_accumulation_steps=4), epochs=3)
    return fit(model, *data(), epochs=2)


@keras3
def gradient_accumulation_scaled() -> tuple[Any, Logs]:
    """Accumulation inside loss scaling: an exchange inside a condition inside a condition."""
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    return regression(
        keras.optimizers.LossScaleOptimizer(inner, initial_scale=128.0, dynamic_growth_steps=20)
    )


@keras3
def loss_scale_overflow() -> tuple[Any, Logs]:
    """One sample of one share overflows: every worker must skip the update, and halve the scale."""
    keras.utils.set_random_seed(3)
    model = mlp()
    inner = keras.optimizers.SGD(0.01)
    model.compile(
        keras.optimizers.LossScaleOptimizer(inner, initial_scale=1e30, dynamic_growth_steps=10),
        "mse",
    )
    x, y = data()
    y[5] = 3e12
    return fit(model, x, y)


def _mixed(policy: str) -> tuple[Any, Logs]:
    keras.mixed_precision.set_global_policy(policy)
    try:
        return regression(keras.optimizers.SGD(0.05))
    finally:
        keras.mixed_precision.set_global_policy("float32")


@case
def mixed_float16() -> tuple[Any, Logs]:
    return _mixed("mixed_float16")


@case
def mixed_bfloat16() -> tuple[Any, Logs]:
    return _mixed("mixed_bfloat16")


def _embedding(rows: int, optimizer: Any) -> tuple[Any, Logs]:
    keras.utils.set_random_seed(9)
    rng = np.random.default_rng(9)
    ids = rng.integers(0, rows, size=(333, 3))
    y = np.sin(ids.sum(axis=1, keepdims=True)).astype("float32")
    model = keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Embedding(rows, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse")
    return fit(model, ids, y)


@case
def embedding_large_sent_as_rows() -> tuple[Any, Logs]:
    return _embedding(5000, keras.optimizers.SGD(0.5))


@case
def embedding_small_sent_as_table() -> tuple[Any, Logs]:
    return _embedding(20, keras.optimizers.SGD(0.5))


@case
def embedding_small_adagrad_clipped() -> tuple[Any, Logs]:
    """Rows repeat; an optimizer that squares single values must not get their sum."""
    return _embedding(20, keras.optimizers.Adagrad(0.1, clipvalue=0.05))


@case
def embedding_adam() -> tuple[Any, Logs]:
    return _embedding(300, keras.optimizers.Adam(0.01))


@case
def batchnorm_synchronized() -> tuple[Any, Logs]:
    """The last batch of 13 is uneven in every world but one."""
    keras.utils.set_random_seed(10)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((12,)), layers.Dense(16, use_bias=False), layers.BatchNormalization(synchronized=True, momentum=0.9), layers.Activation("relu"),
         layers.Dense(1)]
    )  # fmt: skip
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return fit(model, *data(), validation_split=0.1, epochs=6)


# -- callbacks ------------------------------------------------------------------------------------------


@case
def early_stopping_restores_best() -> tuple[Any, Logs]:
    stop = keras.callbacks.EarlyStopping(
        "val_loss", min_delta=0.01, patience=2, restore_best_weights=True
    )
    fitted = regression(
        keras.optimizers.SGD(0.1), batch_size=16, validation_split=0.3, epochs=30, callbacks=[stop]
    )
    assert 4 <= stop.stopped_epoch < 20
    return fitted


@case
def reduce_lr_on_plateau() -> tuple[Any, Logs]:
    reduce = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.1)
    return regression(keras.optimizers.SGD(0.2), callbacks=[reduce], epochs=8)


@case
def checkpoint_csv_and_reload() -> tuple[Any, Logs]:
    """Files written once, readable by every worker afterwards."""
    folder = Path(os.environ["SYRTOS_PARITY_FILES"])
    folder.mkdir(exist_ok=True)
    best = str(folder / "best.weights.h5")
    saved = keras.callbacks.ModelCheckpoint(
        best, monitor="val_loss", save_best_only=True, save_weights_only=True
    )
    model, logs = regression(
        keras.optimizers.SGD(0.2),
        validation_split=0.3,
        epochs=8,
        callbacks=[saved, keras.callbacks.CSVLogger(str(folder / "log.csv"))],
    )
    model.load_weights(best)
    path = str(folder / ("whole.keras"))
    model.save(path)
    reloaded = keras.models.load_model(path)
    logs["csv_lines"] = [float(len((folder / "log.csv").read_text().splitlines()))]
    logs["reloaded"] = reloaded.predict(data(9)[0], verbose=0).ravel().tolist()
    return model, logs


@case
def batch_logs() -> tuple[Any, Logs]:
    """What callbacks see after every batch."""
    seen: list[float] = []
    watch = keras.callbacks.LambdaCallback(
        on_batch_end=lambda batch, logs: seen.append(float(logs["loss"]))
    )
    model, logs = regression(callbacks=[watch])
    return model, {**logs, "batch_loss": seen}


@case
def stop_from_batch_callback() -> tuple[Any, Logs]:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if logs["loss"] < 0.35 and batch > 3:
                self.model.stop_training = True

    return regression(callbacks=[Stop()], epochs=30)


class Errors(keras.metrics.Metric):  # type: ignore[misc]
    """States that are no sums: the largest error, the least prediction, the error of the last batch, an average that moves, counts and
    means of batches; and one that is."""

    def __init__(self) -> None:
        super().__init__(name="errors")
        self.largest = self.add_weight(name="largest", initializer="zeros")
        self.least = self.add_weight(name="least", initializer=keras.initializers.Constant(np.inf))
        self.last = self.add_weight(name="last", initializer="zeros")
        self.moving = self.add_weight(name="moving", initializer="zeros")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.batches = self.add_weight(name="batches", initializer="zeros")
        self.means = self.add_weight(name="means", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = keras.ops.abs(y_true - y_pred)
        least = keras.ops.minimum(self.least, keras.ops.min(y_pred))
        self.largest.assign(keras.ops.maximum(keras.ops.max(errors), self.largest))
        self.least.assign(least)
        self.last.assign(keras.ops.mean(errors))
        self.moving.assign(0.8 * self.moving + 0.2 * keras.ops.mean(errors))
        self.total.assign(self.total + keras.ops.sum(errors))
        self.batches.assign_add(1.0)
        self.means.assign_add(keras.ops.mean(errors))

    def result(self) -> Any:
        return {
            name: getattr(self, name) + 0.0
            for name in ("largest", "least", "last", "moving", "total", "batches", "means")
        }

    def reset_state(self) -> None:
        self.least.assign(np.inf)
        for counted in (self.largest, self.last, self.moving, self.total, self.batches, self.means):
            counted.assign(0.0)


@keras3
def metric_of_extremes() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(3)
    x, y = data()
    model = mlp()
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=[Errors()])
    return fit(model, x, y, validation_data=(x[:77], y[:77]))


# -- batches that can't be split as they are, and loops of a script's own -----------------------------------

importlib.import_module("mixed_rows")
importlib.import_module("changing_steps")
importlib.import_module("own_loops")
