"""Run by every worker of `syrtos run`: ``estimator_checks.py CHECK,CHECK FOLDER``; each check that holds prints ``ok CHECK``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import syrtos
from syrtos.comm import world

v1: Any = tf.compat.v1
E: Any = tf.estimator  # pyright: ignore[reportAttributeAccessIssue]
X = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def reads(batch: int = 16, repeat: int | None = None) -> Any:
    return lambda: tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat(repeat).batch(batch)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    p = v1.layers.dense(features["x"], 1, name="dense")
    if mode == E.ModeKeys.PREDICT:
        return E.EstimatorSpec(mode, predictions={"p": p, "twice": 2 * p})
    loss = v1.losses.mean_squared_error(labels, p)
    step = v1.train.get_global_step()
    op = v1.train.GradientDescentOptimizer(params.get("rate", 0.05)).minimize(
        loss, global_step=step
    )
    hooks = params.get("hooks", lambda tensor: [])(loss)
    return E.EstimatorSpec(mode, loss=loss, train_op=op, training_hooks=hooks)


def estimator(folder: Path, config: Any = None, **params: Any) -> Any:
    return E.Estimator(model_fn, str(folder), config, params)


def serving() -> Any:
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    return E.export.ServingInputReceiver({"x": x}, {"x": x})


def predicts(folder: Path) -> None:
    made = estimator(folder).train(reads(), steps=30)
    rows = list(made.predict(reads(repeat=1), predict_keys="p"))
    assert [set(row) for row in rows] == [{"p"}] * 96
    w, b = made.get_variable_value("dense/kernel"), made.get_variable_value("dense/bias")
    np.testing.assert_allclose(
        np.stack([row["p"] for row in rows]), X @ w + b, rtol=1e-4, atol=1e-5
    )
    batches = list(made.predict(reads(repeat=1), yield_single_examples=False))
    assert [len(batch["p"]) for batch in batches] == [16] * 6
    assert made.get_variable_names() == ["dense/bias", "dense/kernel", "global_step"]


def predicts_from_a_folder_of_its_own(folder: Path) -> None:
    """Of the temporary folders that workers have made, rank 0's has the checkpoints."""
    made = estimator(Path(tempfile.mkdtemp())).train(reads(), steps=30)
    w, b = made.get_variable_value("dense/kernel"), made.get_variable_value("dense/bias")
    rows = [row["p"] for row in made.predict(reads(repeat=1))]
    np.testing.assert_allclose(np.stack(rows), X @ w + b, rtol=1e-4, atol=1e-5)


def draws_by_given_seeds(folder: Path) -> None:
    """What the script gives a seed is drawn as in one process, in each of several graphs."""
    shuffled = lambda: reads(1, 1)().unbatch().shuffle(96, seed=5)  # noqa: E731
    expected = np.stack([x["x"] for x, _ in shuffled()])
    weights = np.asarray(v1.random_normal_initializer(seed=3)([4, 1]))

    def of_seeds(features: Any, labels: Any, mode: str, params: Any) -> Any:
        w = v1.get_variable("w", [4, 1], initializer=v1.random_normal_initializer(seed=3))
        if mode == E.ModeKeys.PREDICT:
            return E.EstimatorSpec(mode, {"x": features["x"]})
        loss = tf.reduce_mean((features["x"] @ w - labels) ** 2)
        step = v1.train.get_global_step()
        op = v1.train.GradientDescentOptimizer(0.0).minimize(loss, global_step=step)
        return E.EstimatorSpec(mode, loss=loss, train_op=op)

    made = E.Estimator(of_seeds, str(folder))
    for _ in range(2):
        made.train(lambda: shuffled().batch(16), steps=1)
    np.testing.assert_allclose(made.get_variable_value("w"), weights, rtol=1e-6)
    for _ in range(2):
        found = [row["x"] for row in made.predict(lambda: shuffled().batch(16), "x")]
        np.testing.assert_array_equal(np.stack(found), expected)


def exports(folder: Path) -> None:
    made = estimator(folder, E.RunConfig(save_checkpoints_steps=10))
    exporters = [
        E.BestExporter("best", serving, exports_to_keep=1),
        E.LatestExporter("latest", serving),
        E.FinalExporter("final", serving),
    ]
    spec = E.EvalSpec(
        reads(repeat=1), steps=None, name="held_out", exporters=exporters, throttle_secs=0
    )
    metrics, written = E.train_and_evaluate(made, E.TrainSpec(reads(), max_steps=30), spec)
    assert metrics["global_step"] == 30
    syrtos.barrier()
    assert (folder / "eval_held_out").is_dir()
    counts = {
        name: len(list((folder / "export" / name).iterdir()))
        for name in ("best", "latest", "final")
    }
    assert counts == {"best": 1, "latest": 3, "final": 1}, counts
    served = tf.saved_model.load(written[1].decode()).signatures["serving_default"]
    expected = np.stack([row["p"] for row in made.predict(reads(repeat=1))])
    np.testing.assert_allclose(served(x=tf.constant(X))["p"], expected, rtol=1e-5, atol=1e-6)


def listens(folder: Path) -> None:
    """Hooks and listeners run on every worker; a wish of one to stop is everybody's."""
    steps: list[int] = []
    told: list[str] = []

    class Stops(v1.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            steps.append(1)
            if syrtos.rank() == 1 and len(steps) == 7:
                run_context.request_stop()

    class Listens(v1.train.CheckpointSaverListener):
        def after_save(self, session: Any, global_step_value: int) -> None:
            told.append(f"saved {global_step_value}")

    made = estimator(folder, E.RunConfig(save_checkpoints_steps=5), hooks=lambda loss: [Stops()])
    made.train(reads(), saving_listeners=[Listens()])
    assert len(steps) == 7
    assert told == ["saved 0", "saved 5", "saved 7"]


def stops_at_nan(folder: Path) -> None:
    with pytest.raises(v1.train.NanLossDuringTrainingError):
        estimator(folder, rate=1e30).train(reads(), steps=50)


def ends_with_data(folder: Path) -> None:
    """Data that does not divide evenly: the last batch has fewer rows than there are workers."""
    made = estimator(folder).train(
        lambda: reads(19, 1)().concatenate(reads(96, 1)().unbatch().take(1).batch(1))
    )
    assert int(made.get_variable_value("global_step")) == 7
    again = made.train(reads(), max_steps=7)
    assert int(again.get_variable_value("global_step")) == 7


def keras_model(folder: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="out")])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    made = tf.keras.estimator.model_to_estimator(
        model, model_dir=str(folder), config=E.RunConfig(save_checkpoints_steps=10)
    )
    data = lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)  # noqa: E731
    spec = E.EvalSpec(data, steps=None, throttle_secs=0, exporters=E.LatestExporter("latest", None))
    metrics, written = E.train_and_evaluate(
        made, E.TrainSpec(lambda: data().repeat(), max_steps=25), spec
    )
    assert metrics["global_step"] == 25
    rows = np.stack([row["out"] for row in made.predict(data)])
    np.testing.assert_allclose(rows, model(X), rtol=1e-5, atol=1e-6)
    syrtos.barrier()
    served = tf.saved_model.load(written[0].decode()).signatures["serving_default"]
    np.testing.assert_allclose(
        next(iter(served(tf.constant(X)).values())), rows, rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ValueError, match="use callbacks"):
        made.train(data, hooks=[v1.train.StopAtStepHook(3)])


def unnamed_layers(folder: Path) -> None:
    """Keras 3 layers without names, with statistics and random numbers of their own: found again in the next graph."""
    import keras

    def net(features: Any, labels: Any, mode: str) -> Any:
        training = mode == E.ModeKeys.TRAIN
        hidden = keras.layers.BatchNormalization(momentum=0.5)(
            keras.layers.Dense(4)(features["x"]), training=training
        )
        p = keras.layers.Dense(1)(keras.layers.Dropout(0.5)(hidden, training=training))
        loss = v1.losses.mean_squared_error(labels, p)
        op = v1.train.GradientDescentOptimizer(0.01).minimize(
            loss, global_step=v1.train.get_global_step()
        )
        return E.EstimatorSpec(mode, loss=loss, train_op=op)

    made = E.Estimator(net, str(folder)).train(reads(), steps=6)
    first = made.evaluate(reads(repeat=1))
    assert first == made.evaluate(reads(repeat=1))
    name = next(n for n in made.get_variable_names() if n.endswith("moving_mean"))
    assert made.get_variable_value(name).any()
    seed = next(n for n in made.get_variable_names() if "seed_generator_state" in n)
    assert int(made.get_variable_value(seed)[1]) == 6


def own_optimizer(folder: Path) -> None:
    """As BERT's: gradients by hand, clipped, to a class that overrides `apply_gradients` alone."""

    class Plain(v1.train.Optimizer):
        def __init__(self) -> None:
            super().__init__(False, "plain")

        def apply_gradients(
            self, grads_and_vars: Any, global_step: Any = None, name: Any = None
        ) -> Any:
            updates = [v1.assign_sub(v, 0.05 * g) for g, v in grads_and_vars]
            return tf.group(*updates, v1.assign_add(global_step, 1))

    def net(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("w", (4, 1), initializer=v1.zeros_initializer())
        loss = v1.losses.mean_squared_error(
            labels, features["x"] @ w, reduction=v1.losses.Reduction.SUM
        )
        grads, _ = tf.clip_by_global_norm(tf.gradients(loss, [w]), 1.0)
        op = Plain().apply_gradients([(grads[0], w)], v1.train.get_global_step())
        return E.EstimatorSpec(mode, loss=loss, train_op=op, training_hooks=[Equal(w)])

    class Equal(v1.train.SessionRunHook):
        def __init__(self, w: Any) -> None:
            self._w = w

        def end(self, session: Any) -> None:
            everyone = syrtos.allgather(session.run(self._w).reshape(1, -1))
            np.testing.assert_array_equal(everyone[0], everyone[1])

    E.Estimator(net, str(folder)).train(reads(), steps=5)


def sum_of_losses(folder: Path) -> None:
    def net(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("w", (4, 1), initializer=v1.zeros_initializer())
        loss = v1.losses.mean_squared_error(
            labels, features["x"] @ w, reduction=v1.losses.Reduction.SUM
        )
        op = v1.train.GradientDescentOptimizer(0.01).minimize(
            loss, global_step=v1.train.get_global_step()
        )
        return E.EstimatorSpec(mode, loss=loss, train_op=op)

    made = E.Estimator(net, str(folder))
    before = made.evaluate(reads(19, 1), steps=1)["loss"]
    np.testing.assert_allclose(before, np.sum(Y[:19] ** 2), rtol=1e-5)
    made.train(reads(19, 1), steps=1)
    expected = 0.01 * 2 * X[:19].T @ Y[:19]
    np.testing.assert_allclose(made.get_variable_value("w"), expected, rtol=1e-4)


def _check_equal_to_one_process(folder: Path, loss: Any, batch: int, counts: bool = False) -> None:
    """Trains and evaluates on batches of so many rows, of a static number where it divides all, against a loop over them."""
    start = np.linspace(-1.0, 1.0, 4, dtype=np.float32)[:, None]

    def input_fn() -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(
            batch, drop_remainder=96 % batch == 0
        )

    def root(y: Any, p: Any) -> Any:
        return tf.sqrt(tf.reduce_mean(tf.square(y - p)) + 1e-3)

    def net(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("w", initializer=start)
        rows = v1.get_variable("rows", initializer=0, trainable=False)
        p = features["x"] @ w
        value, step = loss(labels, p), v1.train.get_global_step()
        optimizer = v1.train.GradientDescentOptimizer(0.001)
        counted = tf.no_op()
        if counts:
            counted = tf.cond(
                value > -1.0,
                lambda: tf.identity(v1.assign_add(rows, tf.shape(p)[0])),
                lambda: tf.identity(rows),
            )
        op = optimizer.minimize(value, global_step=step)
        metrics = {
            "root": v1.metrics.mean(root(labels, p)),
            "mae": v1.metrics.mean_absolute_error(labels, p),
        }
        return E.EstimatorSpec(
            mode, loss=value, train_op=tf.group(op, counted), eval_metric_ops=metrics
        )

    made = E.Estimator(net, str(folder / f"{loss.__name__} {batch}")).train(input_fn)
    expected = tf.Variable(start)
    for x, y in ((X[i : i + batch], Y[i : i + batch]) for i in range(0, 96, batch)):
        with tf.GradientTape() as tape:
            value = loss(y, x @ expected)
        gradient: Any = tape.gradient(value, expected)
        expected.assign_sub(0.001 * gradient)
    np.testing.assert_allclose(
        made.get_variable_value("w"), expected.numpy(), rtol=2e-5, err_msg=loss.__name__
    )
    assert made.get_variable_value("rows") == (96 if counts else 0)
    found = made.evaluate(input_fn)
    batches = [(Y[i : i + batch], X[i : i + batch] @ expected) for i in range(0, 96, batch)]
    np.testing.assert_allclose(found["root"], np.mean([root(y, p) for y, p in batches]), rtol=2e-5)
    np.testing.assert_allclose(found["loss"], np.mean([loss(y, p) for y, p in batches]), rtol=2e-5)
    np.testing.assert_allclose(found["mae"], np.mean(np.abs(Y - X @ expected.numpy())), rtol=2e-5)


def computes_what_one_process_computes(folder: Path) -> None:
    """Losses and metrics of whole batches: of 19 rows and one of 1, and of 16, a static number."""

    def pairs(y: Any, p: Any) -> Any:
        return tf.reduce_mean(tf.abs((y - tf.transpose(y)) - (p - tf.transpose(p))))

    def penalized(y: Any, p: Any) -> Any:
        return v1.losses.mean_squared_error(y, p, reduction=v1.losses.Reduction.SUM) + tf.square(
            tf.reduce_sum(p)
        )

    def total(y: Any, p: Any) -> Any:
        return tf.reduce_sum(tf.square(y - p))

    for loss in (pairs, penalized, total):
        _check_equal_to_one_process(folder, loss, 19)
    _check_equal_to_one_process(folder, total, 16)
    _check_equal_to_one_process(folder, pairs, 16, counts=True)


class Reads(v1.train.SessionRunHook):
    """Notes what a hook fetches by name, in each step."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def before_run(self, run_context: Any) -> Any:
        del run_context
        return v1.train.SessionRunArgs({"hidden": "hidden:0", "spread": ["spread:0"]})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context
        self.seen.append((run_values.results["hidden"], run_values.results["spread"][0]))


def draws_and_statistics_are_of_the_batch(folder: Path) -> None:
    """Noise, Dropout, statistics and what hooks see are those of a session that trains the same graph alone."""

    def build(x: Any, y: Any) -> tuple[Any, Any, Any]:
        w = v1.get_variable("w", initializer=np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
        last = v1.get_variable("last", initializer=np.ones((8, 1), np.float32))
        moving = v1.get_variable(
            "moving_mean", initializer=np.zeros(8, np.float32), trainable=False
        )
        hidden = x @ w + v1.random_normal(tf.shape(x[:, :1]), seed=3)
        mean, variance = tf.nn.moments(hidden, [0])
        update = v1.assign(moving, 0.9 * moving + 0.1 * mean)
        hidden = v1.nn.dropout((hidden - mean) / tf.sqrt(variance + 0.1), rate=0.4, seed=4)
        hidden = tf.identity(hidden, "hidden")
        spread = tf.identity(tf.math.reduce_std(hidden), "spread")
        v1.summary.histogram("hidden", hidden)
        loss = tf.reduce_mean(tf.square(hidden @ last - y)) + 0.1 * spread
        with tf.control_dependencies([update]):
            step = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
        return loss, step, hidden

    def net(features: Any, labels: Any, mode: str) -> Any:
        loss, step, _ = build(features["x"], labels)
        return E.EstimatorSpec(mode, loss=loss, train_op=step)

    with tf.Graph().as_default() as graph:
        v1.set_random_seed(7)
        v1.train.get_or_create_global_step()
        rows = v1.placeholder(tf.float32, [None, 4]), v1.placeholder(tf.float32, [None, 1])
        _, step, hidden = build(*rows)
        names = ("w", "last", "moving_mean")
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            alone = [
                session.run([hidden, step], {rows[0]: X[i : i + 20], rows[1]: Y[i : i + 20]})[0]
                for i in range(0, 96, 20)
            ]
            variables = {v.op.name: v for v in v1.global_variables()}
            expected = session.run([variables[name] for name in names])
    hook = Reads()
    config = E.RunConfig(tf_random_seed=7, save_summary_steps=2)
    made = E.Estimator(net, str(folder), config)
    made.train(reads(20, 1), hooks=[hook])
    for (seen, spread), wanted in zip(hook.seen, alone, strict=True):
        np.testing.assert_allclose(seen, wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(spread, np.std(wanted), rtol=1e-4)
    for name, value in zip(names, expected, strict=True):
        np.testing.assert_allclose(made.get_variable_value(name), value, rtol=1e-4, atol=1e-6)


def many_metrics(folder: Path) -> None:
    """An operation that waits for many has them in an order of addresses: no exchange may follow it."""

    def net(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("w", initializer=np.linspace(-1, 1, 4, dtype=np.float32)[:, None])
        p = features["x"] @ w
        loss = tf.reduce_mean(tf.square(p - labels))
        step = v1.train.GradientDescentOptimizer(0.0).minimize(loss, v1.train.get_global_step())
        metrics = {f"m{i}": v1.metrics.mean(p + i) for i in range(12)}
        return E.EstimatorSpec(mode, loss=loss, train_op=step, eval_metric_ops=metrics)

    made = E.Estimator(net, str(folder)).train(reads(20, 1), steps=1)
    found = made.evaluate(reads(20, 1))
    expected = (X @ np.linspace(-1, 1, 4, dtype=np.float32)[:, None]).mean()
    np.testing.assert_allclose(
        [found[f"m{i}"] for i in range(12)], expected + np.arange(12), rtol=1e-4, atol=1e-5
    )


def sparse_features(folder: Path) -> None:
    """Each batch is taken once, and computed whole."""

    def input_fn() -> Any:
        rows = tf.data.Dataset.range(24).batch(4)
        return rows.map(lambda n: ({"s": tf.sparse.from_dense(tf.stack([n + 1, n + 1], 1))}, n))

    def net(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("w", (40, 1), initializer=v1.zeros_initializer())
        p = tf.compat.v1.nn.safe_embedding_lookup_sparse(w, features["s"], combiner="sum")
        loss = tf.reduce_sum(p) + 0.0 * tf.cast(tf.reduce_sum(labels), tf.float32)
        step = v1.train.GradientDescentOptimizer(1.0).minimize(loss, v1.train.get_global_step())
        return E.EstimatorSpec(mode, loss=loss, train_op=step)

    made = E.Estimator(net, str(folder)).train(input_fn)
    assert made.get_variable_value("global_step") == 6
    seen = np.flatnonzero(made.get_variable_value("w"))
    np.testing.assert_array_equal(seen, np.arange(1, 25))


def exchanges_in_several_conditions(folder: Path) -> None:
    def net(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("w", initializer=np.ones((4, 4), np.float32))
        h = features["x"] @ w
        largest = [
            tf.cond(
                tf.reduce_sum(labels) < 1e9,
                lambda i=i: tf.reduce_max(tf.sort(h[:, i])),
                lambda: 0.0,
            )
            for i in range(4)
        ]
        tf.stack(largest, name="largest")
        op = v1.assign_add(v1.train.get_global_step(), 1)
        return E.EstimatorSpec(mode, loss=tf.reduce_sum(largest), train_op=op)

    class Largest(v1.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            del run_context
            return v1.train.SessionRunArgs("largest:0")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context
            np.testing.assert_allclose(
                run_values.results, np.full(4, X[:20].sum(1).max()), rtol=1e-5
            )

    E.Estimator(net, str(folder)).train(reads(20, 1), steps=1, hooks=[Largest()])


def conditions_of_tensorflow_1(folder: Path) -> None:
    """What is not understood is computed whole, and said."""

    def net(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("w", (4, 1), initializer=v1.zeros_initializer())
        p = features["x"] @ w
        v1.disable_control_flow_v2()
        loss = tf.cond(
            tf.reduce_sum(labels) > 1e9,
            lambda: 0.0 * tf.reduce_sum(p),
            lambda: tf.reduce_mean(tf.square(p - labels)),
        )
        v1.enable_control_flow_v2()
        op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, v1.train.get_global_step())
        return E.EstimatorSpec(mode, loss=loss, train_op=op)

    made = E.Estimator(net, str(folder)).train(reads(19, 1), steps=1)
    expected = 0.01 * 2 / 19 * X[:19].T @ Y[:19]
    np.testing.assert_allclose(made.get_variable_value("w"), expected, rtol=1e-4)
    assert "TensorFlow 1 (Merge)" in str(world.current().ledger.told["not_split"])


def step_is_an_assignment(folder: Path) -> None:
    def net(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("w", (4, 1), initializer=v1.zeros_initializer())
        loss = v1.losses.mean_squared_error(labels, features["x"] @ w)
        with tf.control_dependencies([v1.train.GradientDescentOptimizer(0.01).minimize(loss)]):
            op = v1.assign_add(v1.train.get_global_step(), 1)
        return E.EstimatorSpec(mode, loss=loss, train_op=op)

    made = E.Estimator(net, str(folder))
    made.train(reads(), steps=3)
    assert made.get_variable_value("global_step") == 3
    assert (made.get_variable_value("w") != 0.0).all()


def refuses_training_of_keras(folder: Path) -> None:
    def net(features: Any, labels: Any, mode: str) -> Any:
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return E.EstimatorSpec(mode, loss=model.train_on_batch(features["x"], labels))

    fit = tf.keras.Model.fit
    with pytest.raises(
        Exception, match=r"`model.train_on_batch` was called in a `model_fn`.*model_to_estimator"
    ):
        E.Estimator(net, str(folder)).train(reads(), steps=3)
    assert tf.keras.Model.fit is fit


def roles(folder: Path) -> None:
    config = E.RunConfig()
    rank = syrtos.rank()
    assert (config.task_type, config.task_id, config.is_chief) == (
        ("chief", 0, True) if rank == 0 else ("worker", 0, False)
    )
    assert (config.num_worker_replicas, config.num_ps_replicas, config.global_id_in_cluster) == (
        2,
        0,
        rank,
    )
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}
    )
    try:
        assert (E.RunConfig().task_type, E.RunConfig().num_worker_replicas) == ("evaluator", 0)
    finally:
        del os.environ["TF_CONFIG"]
    with pytest.raises(ValueError, match="cannot be both set"):
        E.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)
    with pytest.raises(Exception, match="Instead: build the model in Keras"):
        E.DNNClassifier([10], [])


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        folder = Path(sys.argv[2]) / name
        globals()[name](folder)
        print("ok", name, flush=True)
