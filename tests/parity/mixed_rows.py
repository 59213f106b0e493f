"""Cases whose losses, metrics, layers or steps mix the rows of a batch, or assign what is no mean: right only if the whole batch is looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from cases import Logs, case, classes, data, fit, keras, keras3, mlp

ops: Any = getattr(keras, "ops", None)


@keras3
def loss_with_negatives_of_the_batch() -> tuple[Any, Logs]:
    """A contrastive loss: each row's partner is its positive, the partners of all others its negatives."""
    keras.utils.set_random_seed(11)
    x, _ = data()
    tower = keras.Sequential(
        [keras.layers.Dense(16, "tanh"), keras.layers.Dense(8), keras.layers.UnitNormalization()]
    )
    left, right = keras.layers.Input((12,)), keras.layers.Input((12,))
    model = keras.Model([left, right], ops.stack([tower(left), tower(right)], axis=1))

    def contrast(_: Any, pairs: Any) -> Any:
        scores = ops.matmul(pairs[:, 0], ops.transpose(pairs[:, 1])) / 0.3
        rows = ops.arange(ops.shape(scores)[0])
        return keras.losses.sparse_categorical_crossentropy(rows, scores, from_logits=True)

    model.compile(keras.optimizers.SGD(0.2), contrast)
    return fit(
        model,
        [x, x + 0.1 * x[::-1]],
        np.zeros(len(x)),
        validation_data=([x[:50], x[1:51]], np.zeros(50)),
    )


@keras3
def loss_and_metric_of_one_number() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(12)
    x, y = data()

    def root(y_true: Any, y_pred: Any) -> Any:
        return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))

    def hardest(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.top_k(ops.reshape(ops.abs(y_true - y_pred), [-1]), 5)[0])

    model = mlp()
    model.compile(keras.optimizers.SGD(0.05), root, metrics=[root, hardest])
    return fit(model, x, y, validation_data=(x[:77], y[:77]))


@keras3
def loss_class_with_a_call_of_its_own() -> tuple[Any, Logs]:
    """As losses of keras.io's examples on contrastive learning: `Loss.__call__` is never called."""
    keras.utils.set_random_seed(24)
    x, kinds = classes()

    class Contrast(keras.losses.Loss):
        def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            del sample_weight
            kinds = ops.reshape(y_true, (-1, 1))
            alike = ops.cast(ops.equal(kinds, ops.transpose(kinds)), y_pred.dtype)
            alike /= ops.sum(alike, axis=1, keepdims=True)
            scores = ops.matmul(y_pred, ops.transpose(y_pred))
            return ops.mean(keras.losses.categorical_crossentropy(alike, scores, from_logits=True))

    model = mlp(4)
    model.compile(keras.optimizers.SGD(0.05), Contrast())
    return fit(
        model, x, kinds.astype("float32"), validation_data=(x[:50], kinds[:50].astype("float32"))
    )


@keras3
def losses_of_keras_that_mix_rows() -> tuple[Any, Logs]:
    logs: Logs = {}
    model = None
    for loss in (keras.losses.Dice(), keras.losses.Tversky(alpha=0.3, beta=0.7)):
        keras.utils.set_random_seed(13)
        x, kinds = classes()
        y = np.eye(3, dtype="float32")[kinds]
        model = mlp(3, "softmax")
        model.compile(keras.optimizers.SGD(0.2), loss, metrics=[loss])
        model, found = fit(model, x, y, epochs=3, sample_weight=np.linspace(0.5, 1.5, len(x)))
        logs |= {f"{type(loss).__name__} {name}": values for name, values in found.items()}
    return model, logs


@keras3
def masked_loss_and_accuracy() -> tuple[Any, Logs]:
    """Means over the words that are there, of sentences of all lengths."""
    keras.utils.set_random_seed(14)
    rng = np.random.default_rng(14)
    words = rng.integers(1, 20, size=(200, 7))
    words[np.arange(7) >= rng.integers(1, 8, size=200)[:, None]] = 0
    targets = np.roll(words, -1, axis=1) % 5

    def masked(values: Any, y_true: Any) -> Any:
        mask = ops.cast(ops.not_equal(y_true, 0), "float32")
        return ops.sum(values * mask) / ops.maximum(ops.sum(mask), 1.0)

    def loss(y_true: Any, y_pred: Any) -> Any:
        return masked(
            keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True), y_true
        )

    def accuracy(y_true: Any, y_pred: Any) -> Any:
        hits = ops.equal(ops.cast(y_true, "int32"), ops.cast(ops.argmax(y_pred, -1), "int32"))
        return masked(ops.cast(hits, "float32"), y_true)

    model = keras.Sequential(
        [keras.layers.Input((7,)), keras.layers.Embedding(20, 6), keras.layers.Dense(5)]
    )
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[accuracy])
    return fit(model, words, targets, batch_size=17)


@keras3
def layer_that_centers_a_batch() -> tuple[Any, Logs]:
    """Nothing of it can be computed on a part of the rows: each worker computes the batch."""

    class Centered(keras.layers.Layer):
        def call(self, rows: Any) -> Any:
            return rows - ops.mean(rows, axis=0, keepdims=True)

    keras.utils.set_random_seed(15)
    x, y = data()
    model = keras.Sequential(
        [
            keras.layers.Input((12,)),
            keras.layers.Dense(9, "tanh"),
            Centered(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return fit(model, x, y, validation_data=(x[:77], y[:77]))


@keras3
def step_that_takes_its_rows_from_a_static_shape() -> tuple[Any, Logs]:
    """It can be computed on a part of a batch, but not traced for one: 31 rows are 16 and 15."""

    class Static(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True)) + ops.mean(
                    ops.zeros((x.shape[0], 1))
                )
            self.optimizer.apply_gradients(
                zip(
                    tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True
                )
            )
            return {"loss": loss}

    keras.utils.set_random_seed(25)
    x, y = data()
    inputs = keras.Input((12,))
    model = Static(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    history = model.fit(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(31, drop_remainder=True),
        epochs=6,
        verbose=0,
    )
    return model, dict(history.history)


@keras3
def step_that_draws_and_mixes_rows() -> tuple[Any, Logs]:
    """A model that its first batch builds; what is drawn to look at that batch must not be missing afterwards."""

    class Denoising(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.net = keras.layers.Dense(12)
            self.generator = keras.random.SeedGenerator(3)

        def call(self, x: Any) -> Any:
            return self.net(x)

        def train_step(self, x: Any) -> Any:
            noise = keras.random.normal(ops.shape(x), seed=self.generator) + keras.random.normal(
                ops.shape(x)
            )
            with tf.GradientTape() as tape:
                loss = ops.mean(ops.square(self.net(x + noise) - noise)) + ops.max(ops.sum(x))
            self.optimizer.apply_gradients(
                zip(
                    tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True
                )
            )
            return {"loss": loss}

    keras.utils.set_random_seed(26)
    model = Denoising()
    model.compile(keras.optimizers.SGD(0.05))
    history = model.fit(data()[0], batch_size=32, epochs=6, verbose=0)
    return model, dict(history.history)


@keras3
def layers_that_count_and_remember() -> tuple[Any, Logs]:
    """The rows that were seen (a sum), the largest number of them (a maximum), and a moving average of sums (neither)."""

    class Counted(keras.layers.Layer):
        def build(self, _shape: Any) -> None:
            self.seen, self.largest = (
                self.add_weight(shape=(), initializer="zeros", trainable=False, name=n)
                for n in ("seen", "largest")
            )

        def call(self, rows: Any) -> Any:
            self.seen.assign(self.seen + ops.cast(ops.shape(rows)[0], "float32"))
            self.largest.assign(ops.maximum(self.largest, ops.max(rows)))
            return rows

    class Averaged(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.total = self.add_weight(
                shape=(shape[-1],), initializer="ones", trainable=False, name="total"
            )

        def call(self, rows: Any, training: bool = False) -> Any:
            if training:
                self.total.assign(0.9 * self.total + 0.1 * ops.sum(ops.stop_gradient(rows), axis=0))
            return rows

    logs: Logs = {}
    model = None
    for layer in (Counted(), Averaged()):
        keras.utils.set_random_seed(16)
        x, y = data()
        model = keras.Sequential(
            [keras.layers.Input((12,)), keras.layers.Dense(9, "tanh"), layer, keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse")
        model, found = fit(model, x, y, epochs=3)
        logs |= {f"{layer.name} {name}": values for name, values in found.items()}
        logs |= {
            w.path: np.asarray(keras.ops.convert_to_numpy(w)).ravel().tolist()
            for w in layer.weights
        }
    return model, {
        name.rpartition("/")[2] if "/" in name else name: value for name, value in logs.items()
    }


@keras3
def stateful_layer() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(17)
    waves = np.sin(np.linspace(0, 40, 8 * 9 * 5).reshape(8, 9, 5)).astype("float32")
    x = waves.transpose(1, 0, 2).reshape(72, 5, 1)
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(8, 5, 1)),
            keras.layers.LSTM(6, stateful=True),
            keras.layers.Dense(1),
        ]
    )
    # Nine steps of an epoch: one is left over, of whole batches.
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
    model, logs = fit(model, x, x[:, ::-1][:, 0], batch_size=8, epochs=6)
    return model, {**logs, "predicted": model.predict(x, batch_size=8, verbose=0).ravel().tolist()}


@keras3
def stateful_layer_of_one_row() -> tuple[Any, Logs]:
    """TensorFlow traces its loop for the static number of rows alone."""
    keras.utils.set_random_seed(17)
    x = np.sin(np.linspace(0, 40, 60 * 5)).reshape(60, 5, 1).astype("float32")
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(1, 5, 1)),
            keras.layers.LSTM(6, stateful=True),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model, logs = fit(model, x, x[:, ::-1][:, 0], batch_size=1, epochs=1)
    return model, {**logs, "predicted": model.predict(x, batch_size=1, verbose=0).ravel().tolist()}


class Stepping(keras.Model):
    """A model with a step of its own, for TensorFlow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))

    def gradients(self, x: Any, y: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        return loss, tape.gradient(loss, self.trainable_variables)


@case
def step_that_clips_by_hand() -> tuple[Any, Logs]:
    class Clipping(Stepping):
        def train_step(self, data: Any) -> dict[str, Any]:
            loss, gradients = self.gradients(*data)
            gradients, norm = tf.clip_by_global_norm(gradients, 0.3)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "norm": norm, "rows": tf.shape(data[0])[0]}

    keras.utils.set_random_seed(18)
    x, y = data()
    model = Clipping()
    model.compile(keras.optimizers.SGD(0.1))
    return fit(model, x * np.linspace(0.2, 3, len(x))[:, None].astype("float32"), y)


@case
def step_that_is_aware_of_sharpness() -> tuple[Any, Logs]:
    """Sharpness-aware minimization: a second gradient where the first one leads uphill."""

    class Aware(Stepping):
        def train_step(self, data: Any) -> dict[str, Any]:
            loss, uphill = self.gradients(*data)
            norm = tf.linalg.global_norm(uphill)
            moves = [0.05 * gradient / norm for gradient in uphill]
            for variable, move in zip(self.trainable_variables, moves, strict=True):
                variable.assign_add(move)
            _, gradients = self.gradients(*data)
            for variable, move in zip(self.trainable_variables, moves, strict=True):
                variable.assign_sub(move)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "norm": norm}

    keras.utils.set_random_seed(19)
    model = Aware()
    model.compile(keras.optimizers.Adam(0.01))
    return fit(model, *data())


@case
def step_of_a_sum() -> tuple[Any, Logs]:
    """A sum over the rows, divided by a number that the script knows."""

    class Summing(Stepping):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(self(x, training=True) - y)) / 32.0
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "largest": tf.reduce_max(y)}

    keras.utils.set_random_seed(20)
    model = Summing()
    model.compile(keras.optimizers.SGD(0.05))
    return fit(model, *data())


@case
def step_with_a_penalty_on_input_gradients() -> tuple[Any, Logs]:
    """A gradient by inputs inside of another tape: it stays that of a worker's rows."""

    class Penalized(Stepping):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    predicted = self(x, training=True)
                slope = tf.sqrt(
                    tf.reduce_sum(tf.square(inner.gradient(predicted, x)), axis=1) + 1e-8
                )
                loss = tf.reduce_mean(tf.square(predicted - y)) + 0.1 * tf.reduce_mean(
                    tf.square(slope - 1.0)
                )
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    keras.utils.set_random_seed(21)
    model = Penalized()
    model.compile(keras.optimizers.SGD(0.05))
    return fit(model, *data())


@keras3
def optimizer_of_its_own() -> tuple[Any, Logs]:
    class Clipping(keras.optimizers.SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            norms = [ops.sqrt(ops.sum(ops.square(gradient))) for gradient in grads]
            return super().apply(
                [g * ops.minimum(1.0, 0.2 / (n + 1e-9)) for g, n in zip(grads, norms, strict=True)],
                trainable_variables,
            )

    keras.utils.set_random_seed(22)
    x, y = data()
    model = mlp()
    model.compile(Clipping(0.1), "mse", metrics=["mae"])
    return fit(model, x, y + 0.5)


@keras3
def batches_with_a_table() -> tuple[Any, Logs]:
    """A batch of rows, and a table that is no row of it."""

    class Looking(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            x, table = inputs
            weights = ops.softmax(ops.matmul(self.first(x), ops.transpose(table)))
            return self.second(ops.matmul(weights, table))

    keras.utils.set_random_seed(23)
    x, y = data(200)
    table = np.random.default_rng(23).normal(size=(5, 3)).astype("float32")

    def batches() -> Any:
        for start in range(0, 200, 16):
            yield (x[start : start + 16], table), y[start : start + 16]

    spec = ((tf.TensorSpec((None, 12)), tf.TensorSpec((None, 3))), tf.TensorSpec((None, 1)))
    model = Looking()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    history = model.fit(
        tf.data.Dataset.from_generator(batches, output_signature=spec), epochs=4, verbose=0
    )
    return model, dict(history.history)


@keras3
def loss_without_a_reduction() -> tuple[Any, Logs]:
    """Its gradient is the sum over the rows."""
    keras.utils.set_random_seed(51)
    x, y = data()
    model = mlp()
    model.compile(keras.optimizers.SGD(0.002), keras.losses.MeanSquaredError(reduction="none"))
    return fit(model, x, y)


@keras3
def step_that_returns_vectors() -> tuple[Any, Logs]:
    """Counts and largest errors, one for each of three kinds."""

    class Tables(Stepping):
        def train_step(self, data: Any) -> dict[str, Any]:
            loss, gradients = self.gradients(*data)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            x, y = data
            kinds = tf.one_hot(
                tf.cast(tf.abs(y[:, 0]) > 0.5, tf.int32) + tf.cast(y[:, 0] > 0, tf.int32), 3
            )
            errors = tf.abs(self(x) - y)
            return {
                "loss": loss,
                "count": tf.reduce_sum(kinds, axis=0),
                "largest": tf.reduce_max(kinds * errors, axis=0),
            }

    keras.utils.set_random_seed(52)
    model = Tables()
    model.compile(keras.optimizers.SGD(0.05))
    return fit(model, *data())


@keras3
def term_of_a_fixed_number_of_rows() -> tuple[Any, Logs]:
    """Of few rows all are among the ten largest."""

    class Hardest(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.last(self.first(inputs))

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any
        ) -> Any:
            return ops.mean(ops.top_k(ops.square(y_pred[:, 0] - y[:, 0]), 10)[0])

    keras.utils.set_random_seed(53)
    model = Hardest()
    model.compile(keras.optimizers.SGD(0.02))
    x, y = data()
    return fit(model, x[:192], y[:192])


@keras3
def loss_that_leaves_out_a_smaller_last_batch() -> tuple[Any, Logs]:
    """It depends on how many rows there are: on some of them it is zero, together and in parts."""

    class LeavingOut(keras.Model):
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, *others: Any, **named: Any
        ) -> Any:
            return super().compute_loss(x, y, y_pred, *others, **named) * ops.where(
                ops.shape(y)[0] < 150, 0.0, 1.0
            )

    keras.utils.set_random_seed(26)
    inputs = keras.Input((12,))
    model = LeavingOut(inputs, mlp()(inputs))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return fit(model, *data(), batch_size=200, epochs=30)


@keras3
def loss_of_the_worst_rows() -> tuple[Any, Logs]:
    """As many as a worker has of a batch: those of all are others."""

    class Worst(keras.Model):
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any
        ) -> Any:
            return ops.mean(ops.top_k(ops.mean(ops.square(y - y_pred), axis=-1), 100)[0])

    keras.utils.set_random_seed(27)
    inputs = keras.Input((12,))
    model = Worst(inputs, mlp()(inputs))
    model.compile(keras.optimizers.SGD(0.05))
    return fit(model, *data(), batch_size=200, epochs=30)


@keras3
def parts_of_keras_along_the_rows() -> tuple[Any, Logs]:
    """Of a batch of two dimensions the rows are axis -2."""
    keras.utils.set_random_seed(28)
    logits = keras.layers.Dense(4, use_bias=False)  # a bias would cancel out, and be rounding
    model = keras.Sequential(
        [mlp(8, "tanh"), logits, keras.layers.Softmax(axis=-2), keras.layers.Dense(1)]
    )
    metrics = [keras.metrics.CosineSimilarity(axis=-2, name="cosine")]
    model.compile(
        keras.optimizers.SGD(0.05), keras.losses.CosineSimilarity(axis=-2), metrics=metrics
    )
    # One epoch: after five, weights that differ by 1e-7 at the beginning differ by 4e-3 in one process too.
    return fit(model, *data(), epochs=1)
