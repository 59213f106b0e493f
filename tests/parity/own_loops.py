"""Training loops written by hand, without a strategy: every worker sees whole batches, and computes what one process computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from cases import Logs, case, data, keras, keras3, mlp


def train(
    model: Any,
    optimizer: Any,
    step_loss: Callable[[Any, Any], Any],
    tape: Callable[[], Any] = tf.GradientTape,
) -> tuple[Any, Logs]:
    """Five epochs of 11 batches, with a metric of the loop's own; the loss of each step is logged."""
    mean, seen = keras.metrics.Mean(), []

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tape() as recording:
            loss = step_loss(x, y)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(recording.gradient(loss, variables), variables, strict=True))
        mean.update_state(loss)
        return loss

    batches = tf.data.Dataset.from_tensor_slices(data()).batch(32)
    for _ in range(5):
        for x, y in batches:
            seen.append(float(step(x, y)))
    return model, {"loss": seen, "mean": float(mean.result())}


def start() -> tuple[Any, Any]:
    keras.utils.set_random_seed(11)
    return mlp(), keras.optimizers.SGD(0.05, momentum=0.9)


@case
def own_loop() -> tuple[Any, Logs]:
    model, optimizer = start()
    loss_of = keras.losses.MeanSquaredError()
    return train(model, optimizer, lambda x, y: loss_of(y, model(x, training=True)))


@case
def own_loop_of_losses_by_sample() -> tuple[Any, Logs]:
    model, optimizer = start()
    return train(
        model, optimizer, lambda x, y: tf.reduce_mean(keras.losses.mean_squared_error(y, model(x)))
    )


@case
def own_loop_of_a_compiled_model() -> tuple[Any, Logs]:
    model, optimizer = start()
    model.compile(optimizer, "mse", metrics=["mae"])
    return train(model, optimizer, lambda x, y: model.compute_loss(x, y, model(x, training=True)))


@keras3
def own_loop_clipped_and_accumulated() -> tuple[Any, Logs]:
    model, _ = start()
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.5, gradient_accumulation_steps=2)
    loss_of = keras.losses.Huber()
    return train(model, optimizer, lambda x, y: loss_of(y, model(x, training=True)))


@case
def own_loop_with_dropout_and_batchnorm() -> tuple[Any, Logs]:
    keras.utils.set_random_seed(12)
    layers = [
        keras.layers.Input((12,)),
        keras.layers.Dense(24, "tanh"),
        keras.layers.BatchNormalization(),
    ]
    model = keras.Sequential([*layers, keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    loss_of = keras.losses.MeanSquaredError()
    return train(
        model, keras.optimizers.SGD(0.05), lambda x, y: loss_of(y, model(x, training=True))
    )


@keras3
def own_loop_compiled_by_xla() -> tuple[Any, Logs]:
    model, optimizer = start()

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any, scale: float = 1.0) -> Any:
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_mean(tf.square(y - model(x, training=True)))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}

    batches = tf.data.Dataset.from_tensor_slices(data()).batch(32)
    seen = [float(step(x, y, scale=0.5)["loss"]) for _ in range(5) for x, y in batches]
    return model, {"loss": seen}


@keras3
def own_loop_of_two_models() -> tuple[Any, Logs]:
    """Methods of a class, with noise, two optimizers, a norm, a mask of rows, and a signature that leaves the rows open."""
    keras.utils.set_random_seed(17)
    sizes = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(12, "tanh"), keras.layers.Dropout(0.2)]
    )
    critic = mlp()

    class Pair(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = tf.Variable(tf.constant(0), trainable=False)
            self.optimizers = keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.003)

        @tf.function(input_signature=[tf.TensorSpec([None, 12]), tf.TensorSpec([None, 1])])
        def step(self, x: Any, y: Any) -> Any:
            self.steps.assign_add(1)
            noise = tf.random.stateless_normal(
                tf.stack([tf.shape(x)[0], 4]), tf.stack([1, self.steps.value()])
            )
            with tf.GradientTape(persistent=True) as tape:
                real = critic(x, training=True)
                made = critic(sizes(noise, training=True), training=True)
                large = tf.boolean_mask(real, y[:, 0] > 0)
                of_critic = (
                    tf.reduce_mean(tf.square(real - y))
                    + tf.reduce_mean(made) ** 2
                    + tf.math.reduce_std(large)
                )
                of_sizes = tf.reduce_logsumexp(-made)
            for loss, model, optimizer in zip(
                (of_critic, of_sizes), (critic, sizes), self.optimizers, strict=True
            ):
                grads = tape.gradient(loss, model.trainable_variables)
                grads, _ = tf.clip_by_global_norm(grads, 0.5)
                optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
            return of_critic, made[:2]

    pair, seen = Pair(), []
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(32)
    for _ in range(5):
        for x, y in batches:
            seen.append([float(tf.reduce_sum(each)) for each in pair.step(x, y)])
    return critic, {"seen": [sum(each) for each in seen]}


@keras3
def own_loop_that_waits_for_its_gradients() -> tuple[Any, Logs]:
    """TensorFlow keeps the many operations that one waits for in an order of addresses, which no exchange may follow."""
    keras.utils.set_random_seed(18)
    towers = [keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]) for _ in range(12)]
    model = keras.Model(
        inputs := keras.Input((12,)),
        keras.layers.Concatenate()([t(inputs[:, i : i + 1]) for i, t in enumerate(towers)]),
    )
    optimizer, counted = keras.optimizers.SGD(0.05), tf.Variable(tf.constant(0), trainable=False)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        with tf.control_dependencies(gradients):
            counted.assign_add(1)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    batches = tf.data.Dataset.from_tensor_slices(data()).batch(32)
    return model, {"loss": [float(step(x, y)) for _ in range(3) for x, y in batches]}


@case
def own_loop_with_distributed_optimizer() -> tuple[Any, Logs]:
    from syrtos.keras import DistributedOptimizer

    model, optimizer = start()
    loss_of = keras.losses.MeanSquaredError()
    return train(
        model, DistributedOptimizer(optimizer), lambda x, y: loss_of(y, model(x, training=True))
    )


@case
def own_loop_with_distributed_tape() -> tuple[Any, Logs]:
    from syrtos.keras import DistributedGradientTape

    model, optimizer = start()
    loss_of = keras.losses.MeanSquaredError()
    return train(
        model, optimizer, lambda x, y: loss_of(y, model(x, training=True)), DistributedGradientTape
    )


@case
def own_loop_in_the_default_strategy_s_run() -> tuple[Any, Logs]:
    """As scripts do that fall back to `get_strategy()` where there is no TPU: batches, losses and gradients by its replicas."""
    model, optimizer = start()
    strategy = tf.distribute.get_strategy()
    batch_size = 32 * strategy.num_replicas_in_sync
    loss_of = keras.losses.MeanSquaredError(reduction="none")
    seen = []

    def replica_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of(y, model(x, training=True))) / batch_size
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @tf.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    batches = tf.data.Dataset.from_tensor_slices(data()).batch(batch_size)
    for _ in range(5):
        for batch in strategy.experimental_distribute_dataset(batches):
            seen.append(float(step(batch)))
    return model, {"loss": seen}
