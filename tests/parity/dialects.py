"""Runs scripts of old APIs on workers, and what they mean in one process: ``dialects.py OUT GROUP``, GROUP one of those in `GROUPS`.

Every case trains on the same 576 samples in global batches of 48 and leaves its final weights in ``OUT/CASE.npz``. In plain Python all
cases are the same plain script; only `accumulated` and `summed` mean something else.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# untyped: one of two packages whose annotations disagree
keras: Any = importlib.import_module(
    "tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") else "keras"
)

GLOBAL = 48
EPOCHS = 5

_rng = np.random.default_rng(0)
X = _rng.normal(size=(576, 8)).astype("float32")
Y = np.tanh(X @ _rng.normal(size=(8, 1))).astype("float32")


def make_model(seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((8,)), *layers])


def plain(rate: float = 0.05, **optimizer: Any) -> Any:
    model = make_model()
    model.compile(keras.optimizers.SGD(rate, momentum=0.9, **optimizer), "mse")
    model.fit(X, Y, batch_size=GLOBAL, epochs=EPOCHS, shuffle=False, verbose=0)
    return model


# -- Horovod and SMDDP: each worker takes its batches from its samples; the weights of rank 0 hold ----------------


def _mine(hvd: Any) -> tuple[Any, Any, int]:
    return X[hvd.rank() :: hvd.size()], Y[hvd.rank() :: hvd.size()], GLOBAL // hvd.size()


def _fit(hvd: Any, model: Any, optimizer: Any, **kwargs: Any) -> Any:
    x, y, batch = _mine(hvd)
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0, **kwargs)
    return model


def horovod_fit() -> Any:
    import horovod.tensorflow.keras as hvd

    hvd.init()
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    return _fit(hvd, make_model(1 + hvd.rank()), optimizer, callbacks=callbacks)


def horovod_fit_without_broadcast() -> Any:
    import horovod.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9), compression=hvd.Compression.none
    )
    return _fit(hvd, make_model(1 + hvd.rank()), optimizer)


def horovod_own_gradients() -> Any:
    """Gradients the script computes itself, given to a distributed optimizer: real Horovod diverges."""
    import horovod.tensorflow.keras as hvd

    hvd.init()
    model = make_model(1 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    return _loop(hvd, model, optimizer, lambda tape: tape)


def horovod_tape() -> Any:
    import horovod.tensorflow as hvd

    hvd.init()
    model = make_model(1 + hvd.rank())
    hvd.broadcast_variables(model.variables, root_rank=0)
    return _loop(hvd, model, keras.optimizers.SGD(0.05, momentum=0.9), hvd.DistributedGradientTape)


def horovod_tape_compressed() -> Any:
    import horovod.tensorflow as hvd

    hvd.init()
    model = make_model(1 + hvd.rank())
    hvd.broadcast_variables(model.variables, root_rank=0)
    return _loop(
        hvd,
        model,
        keras.optimizers.SGD(0.05, momentum=0.9),
        lambda tape: hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16),
    )


def horovod_accumulated() -> Any:
    import horovod.tensorflow.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9),
        backward_passes_per_step=3,
        average_aggregated_gradients=True,
    )
    return _fit(hvd, make_model(1 + hvd.rank()), optimizer)


def horovod_accumulated_summed() -> Any:
    """Horovod adds what it accumulates: three times the rate."""
    import horovod.tensorflow.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.01, momentum=0.9), backward_passes_per_step=3
    )
    return _fit(hvd, make_model(1 + hvd.rank()), optimizer)


def horovod_sum() -> Any:
    import horovod.tensorflow.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.05 / hvd.size(), momentum=0.9), op=hvd.Sum
    )
    return _fit(hvd, make_model(), optimizer)


def smddp_fit() -> Any:
    sdp = _smddp()
    optimizer = sdp.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    return _fit(sdp, make_model(1 + sdp.rank()), optimizer)


def smddp_tape() -> Any:
    sdp = _smddp()
    model = make_model(1 + sdp.rank())
    sdp.broadcast_variables(model.variables, root_rank=0)
    return _loop(sdp, model, keras.optimizers.SGD(0.05, momentum=0.9), sdp.DistributedGradientTape)


def _smddp() -> Any:
    import smdistributed.dataparallel.tensorflow as sdp

    sdp.shutdown()
    sdp.init()
    return sdp


def _loop(hvd: Any, model: Any, optimizer: Any, wrap: Callable[[Any], Any]) -> Any:
    x, y, batch = _mine(hvd)
    loss_fn = keras.losses.MeanSquaredError()

    @tf.function
    def step(bx: Any, by: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(by, model(bx, training=True))
        grads = wrap(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    for _ in range(EPOCHS):
        for bx, by in tf.data.Dataset.from_tensor_slices((x, y)).batch(batch):
            step(bx, by)
    return model


# -- tf.distribute and multi_gpu_model: global batches ------------------------------------------------------------


def mirrored_fit() -> Any:
    with tf.distribute.MirroredStrategy().scope():
        return plain()


def mirrored_fit_shuffled() -> Any:
    """Keras 3 reads one batch to build a model of a strategy, so its first epoch has the second order."""
    keras.utils.set_random_seed(
        1
    )  # else that of the case before, which is another one where fewer are asked for
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(len(X), seed=3).batch(GLOBAL)
    with tf.distribute.MirroredStrategy().scope():
        model = make_model()
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.fit(dataset, epochs=EPOCHS, verbose=0)
    return model


def mirrored_fit_on_distributed_dataset() -> Any:
    strategy = tf.distribute.MirroredStrategy()
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(GLOBAL)
    with strategy.scope():
        model = make_model()
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.fit(strategy.experimental_distribute_dataset(dataset), epochs=EPOCHS, verbose=0)
    return model


def multi_worker_fit_on_own_shards() -> Any:
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()

    def dataset_fn(context: Any) -> Any:
        whole = tf.data.Dataset.from_tensor_slices((X, Y))
        mine = whole.shard(context.num_input_pipelines, context.input_pipeline_id)
        return mine.batch(context.get_per_replica_batch_size(GLOBAL))

    with strategy.scope():
        model = make_model()
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.fit(strategy.distribute_datasets_from_function(dataset_fn), epochs=EPOCHS, verbose=0)
    return model


def multi_worker_fit_policy_off() -> Any:
    """The script shards by itself, in batches of the global size: a worker takes a part of one in each step."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers, rank = strategy.num_replicas_in_sync, strategy.cluster_resolver.task_id
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = (
        tf.data.Dataset.from_tensor_slices((X, Y))
        .shard(workers, rank)
        .batch(GLOBAL)
        .with_options(options)
    )
    with strategy.scope():
        model = make_model()
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.fit(dataset, epochs=EPOCHS, verbose=0)
    return model


def mirrored_loop() -> Any:
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.SGD(0.05, momentum=0.9)
        metric, helped = keras.metrics.Mean(), keras.metrics.Mean()

    @tf.function
    def count(x: Any) -> None:
        helped.update_state(x)

    def step(inputs: Any) -> Any:
        x, y = inputs
        metric.update_state(x[:, 0])
        count(x[:, 0])
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean(tf.square(model(x, training=True) - y), axis=-1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed(inputs: Any) -> Any:
        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(step, args=(inputs,)), axis=None
        )

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(GLOBAL)
    for _ in range(EPOCHS):
        for batch in strategy.experimental_distribute_dataset(dataset):
            distributed(batch)
    for found in (metric, helped):  # over all workers
        np.testing.assert_allclose(float(found.result()), X[:, 0].mean(), rtol=1e-4)
        assert float(found.count) == EPOCHS * len(X)
    return model


def central_storage_fit() -> Any:
    with tf.distribute.experimental.CentralStorageStrategy().scope():
        return plain()


def one_device_fit() -> Any:
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        return plain()


def multi_gpu() -> Any:
    model = make_model()
    parallel = keras.utils.multi_gpu_model(model, gpus=2)
    parallel.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    parallel.fit(X, Y, batch_size=GLOBAL, epochs=EPOCHS, shuffle=False, verbose=0)
    assert parallel.layers[-2] is model
    return model


# -- Estimator ----------------------------------------------------------------------------------------


class _Final:
    """An Estimator's last weights, in the order of a model's; its evaluation is checked on the way."""

    def __init__(self, estimator: Any, names: list[str], results: Any) -> None:
        self._weights = [np.asarray(estimator.get_variable_value(name)) for name in names]
        a, b, c, d = self._weights
        error = np.maximum(X[:201] @ a + b, 0.0) @ c + d - Y[:201]
        batches = [float(np.mean(part**2)) for part in np.split(error, [50, 100, 150, 200])]
        np.testing.assert_allclose(results["loss"], np.mean(batches), rtol=1e-5)
        np.testing.assert_allclose(results["mae"], np.abs(error).mean(), rtol=1e-5)
        assert results["global_step"] == EPOCHS * 12, results
        predicted = [row["p"] for row in estimator.predict(_estimator_evaluates_on)]
        np.testing.assert_allclose(np.asarray(predicted), error + Y[:201], rtol=1e-4, atol=1e-5)

    def get_weights(self) -> list[Any]:
        return self._weights


def _model_dir() -> str:
    import tempfile

    import syrtos

    return syrtos.broadcast_object(tempfile.mkdtemp())


def _estimator_trains_on(batch: int = GLOBAL) -> Any:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(batch).repeat(EPOCHS)


def _estimator_evaluates_on() -> Any:
    return tf.data.Dataset.from_tensor_slices(({"x": X[:201]}, Y[:201])).batch(50)


def _graph_of(initial: list[Any], x: Any) -> Any:
    names = ["w1", "b1", "w2", "b2"]
    get: Any = tf.compat.v1.get_variable
    a, b, c, d = (get(n, initializer=tf.constant(w)) for n, w in zip(names, initial, strict=True))
    return tf.nn.relu(x @ a + b) @ c + d


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    # The data has no row of zeros, so a worker without rows meets none either.
    real = tf.debugging.assert_positive(tf.reduce_sum(tf.abs(features["x"]), 1))
    with tf.control_dependencies([real]):
        x = tf.identity(features["x"])
    p = params["model"](x)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"p": p})
    loss = tf.compat.v1.losses.mean_squared_error(labels, p)
    metrics = {"mae": tf.compat.v1.metrics.mean_absolute_error(labels, p)}
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = params.get("optimizer", lambda o: o)(
            tf.compat.v1.train.MomentumOptimizer(0.05, 0.9)
        )
        train_op = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def _estimate(
    params: Any, names: list[str], config: Any = None, trains_on: Any = _estimator_trains_on
) -> Any:
    estimator = tf.estimator.Estimator(_model_fn, _model_dir(), config, params=params)
    results, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(trains_on, max_steps=1000),
        tf.estimator.EvalSpec(_estimator_evaluates_on, steps=None),
    )
    return _Final(estimator, names, results)


def estimator_graph() -> Any:
    """Variables by name, and training that goes on from a checkpoint in the middle."""
    initial = make_model().get_weights()
    params = {"model": lambda x: _graph_of(initial, x)}
    config = tf.estimator.RunConfig(save_checkpoints_steps=7)
    estimator = tf.estimator.Estimator(_model_fn, _model_dir(), config, params=params)
    estimator.train(lambda: _estimator_trains_on().take(24), steps=24)
    again = tf.estimator.Estimator(_model_fn, estimator.model_dir, config, params=params)
    again.train(_estimator_trains_on, max_steps=EPOCHS * 12)
    return _Final(again, ["w1", "b1", "w2", "b2"], again.evaluate(_estimator_evaluates_on))


def estimator_sync_replicas() -> Any:
    """An optimizer that old distributed scripts wrap theirs in."""
    initial = make_model().get_weights()
    wrap = tf.compat.v1.train.SyncReplicasOptimizer
    params = {
        "model": lambda x: _graph_of(initial, x),
        "optimizer": lambda o: wrap(o, replicas_to_aggregate=2),
    }
    return _estimate(params, ["w1", "b1", "w2", "b2"])


def estimator_keras_layers() -> Any:
    """A ``model_fn`` that calls a Keras model."""
    initial = make_model().get_weights()

    def call(x: Any) -> Any:
        values: Any = iter(initial)
        fixed = lambda: keras.initializers.Constant(next(values))  # noqa: E731
        layers = [
            keras.layers.Dense(
                16,
                activation="relu",
                kernel_initializer=fixed(),
                bias_initializer=fixed(),
                name="one",
            ),
            keras.layers.Dense(1, kernel_initializer=fixed(), bias_initializer=fixed(), name="two"),
        ]
        return layers[1](layers[0](x))

    return _estimate({"model": call}, ["one/kernel", "one/bias", "two/kernel", "two/bias"])


def estimator_mirrored() -> Any:
    """With a strategy a batch is one of each worker."""
    import syrtos

    initial = make_model().get_weights()
    config = tf.estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy())
    own = GLOBAL // syrtos.size()
    params = {"model": lambda x: _graph_of(initial, x)}
    return _estimate(params, ["w1", "b1", "w2", "b2"], config, lambda: _estimator_trains_on(own))


def estimator_own_shard() -> Any:
    """An ``input_fn`` that shards by itself."""
    initial = make_model().get_weights()

    def trains_on(input_context: Any) -> Any:
        size, rank = input_context.num_input_pipelines, input_context.input_pipeline_id
        x, y = X[rank::size], Y[rank::size]
        return (
            tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(GLOBAL // size).repeat(EPOCHS)
        )

    params = {"model": lambda x: _graph_of(initial, x)}
    return _estimate(params, ["w1", "b1", "w2", "b2"], None, trains_on)


def estimator_of_keras_model() -> Any:
    model = make_model()
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    estimator = tf.keras.estimator.model_to_estimator(model, model_dir=_model_dir())
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(GLOBAL).repeat(EPOCHS))
    results = estimator.evaluate(
        lambda: tf.data.Dataset.from_tensor_slices((X[:201], Y[:201])).batch(50)
    )
    assert results["global_step"] == EPOCHS * 12, results
    np.testing.assert_allclose(results["loss"], np.mean((model(X[:201]) - Y[:201]) ** 2), rtol=1e-5)
    return model


GROUPS: dict[str, list[Callable[[], Any]]] = {
    "manual": [
        horovod_fit, horovod_fit_without_broadcast, horovod_own_gradients, horovod_tape, horovod_tape_compressed,
        horovod_sum, smddp_fit, smddp_tape,
    ],
    "accumulating": [horovod_accumulated, horovod_accumulated_summed],
    "strategies": [
        mirrored_fit, mirrored_fit_shuffled, mirrored_fit_on_distributed_dataset, mirrored_loop, multi_worker_fit_on_own_shards,
        multi_worker_fit_policy_off, central_storage_fit, one_device_fit, multi_gpu,
    ],
    "estimator": [
        estimator_graph, estimator_sync_replicas, estimator_keras_layers, estimator_mirrored, estimator_own_shard, estimator_of_keras_model,
    ],
}  # fmt: skip
KERAS3_ONLY = ("accumulating",)
MEANINGS: dict[str, Callable[[], Any]] = {
    "mirrored_fit_shuffled": mirrored_fit_shuffled,
    "horovod_accumulated": lambda: plain(gradient_accumulation_steps=3),
    "horovod_accumulated_summed": lambda: plain(0.03, gradient_accumulation_steps=3),
}
# Gradients that travel as float16 have eleven bits; 3e-3 was seen after 60 steps.
TOLERANCE = {"horovod_tape_compressed": 1e-2}


def main(out: Path, names: list[str]) -> None:
    """Runs these cases on workers, or what they mean in plain Python."""
    alone = "syrtos" not in sys.modules
    meaning = functools.cache(lambda train: train())  # most cases mean the same
    for case in (case for group in GROUPS.values() for case in group if case.__name__ in names):
        model = meaning(MEANINGS.get(case.__name__, plain)) if alone else case()
        weights = [np.asarray(w) for w in model.get_weights()]
        if not alone:
            _check_equal(case.__name__, weights)
        if alone or _rank() == 0:
            np.savez(out / f"{case.__name__}.npz", *weights)


def _rank() -> int:
    import syrtos

    return syrtos.rank()


def _check_equal(name: str, weights: list[Any]) -> None:
    import syrtos

    flat = np.concatenate([w.reshape(-1) for w in weights])
    everyone = syrtos.allgather(flat[None])
    assert (everyone == everyone[0]).all(), f"{name}: workers hold different weights"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
