"""Run by every worker of `syrtos run`: ``dialect_checks.py CHECK,CHECK FOLDER``; each check that holds prints ``ok CHECK``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from syrtos.errors import (
    ConfigurationError,
    DivergenceError,
    ExchangeError,
    OutOfStepError,
    SyrtosError,
)


def before_init(folder: Path) -> None:
    for call in (hvd.rank, hvd.size, lambda: hvd.allreduce(tf.ones(2))):
        with pytest.raises(ValueError, match=r"use hvd\.init\(\)"):
            call()
    hvd.init()
    hvd.init()


def basics(folder: Path) -> None:
    assert (hvd.size(), hvd.local_size(), hvd.cross_size()) == (2, 2, 1)
    assert hvd.rank() == hvd.local_rank()
    assert hvd.mpi_built()
    assert not hvd.nccl_built()
    assert hvd.is_homogeneous()
    assert hvd.broadcast_object({"epoch": 3 + hvd.rank(), "best": np.float32(1.5)}) == {
        "epoch": 3,
        "best": 1.5,
    }
    assert hvd.allgather_object((hvd.rank(), "x")) == [(0, "x"), (1, "x")]
    first = hvd.add_process_set([0])
    if first.included():
        assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, process_set=first)) == 1.0
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="no member"):
            hvd.allreduce(tf.constant(1.0), process_set=first)
    for ranks in ([0], [0, 1]):
        with pytest.raises(ValueError, match="registered already"):
            hvd.add_process_set(ranks)
    assert hvd.remove_process_set(first)
    assert first.process_set_id is None


def initialized_twice(folder: Path) -> None:
    """A second call registers the sets that the first did not; equal ranks mean the same set."""
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    hvd.init(process_sets=sets)
    again = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    hvd.init(process_sets=again)
    assert [each.process_set_id for each in again] == [1, 2]
    for mine in (sets[hvd.rank()], again[hvd.rank()]):
        assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, process_set=mine)) == 1.0
    assert hvd.remove_process_set(again[0])
    assert not hvd.remove_process_set(sets[0])
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(tf.constant(1.0), process_set=again[0])
    with pytest.raises(ValueError, match="registered already"):
        hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])


def explained(folder: Path) -> None:
    """Unequal shapes, unequal dtypes, names out of order."""
    wrong = {
        "float32 (3)": lambda: hvd.allreduce(tf.ones(2 + hvd.rank())),
        "float64 (2)": lambda: hvd.allreduce(tf.ones(2, tf.float64 if hvd.rank() else tf.float32)),
        "tensor allreduce b": lambda: hvd.allreduce(tf.ones(2), name="b" if hvd.rank() else "a"),
    }
    for text, call in wrong.items():
        with pytest.raises(OutOfStepError, match="out of step") as caught:
            call()
        assert text in str(caught.value)
        assert isinstance(caught.value, tf.errors.FailedPreconditionError)


def errors_of_tensorflow(folder: Path) -> None:
    """The classes that Horovod raises, in a function and in a session too."""
    wrong = tf.ones(2 + hvd.rank())
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"rank 1: .* float32 \(3\)"
    ) as caught:
        tf.function(hvd.allreduce)(wrong)
    assert isinstance(caught.value, OutOfStepError)
    with pytest.raises(tf.errors.InvalidArgumentError, match="give `splits`") as uneven:
        tf.function(hvd.alltoall)(tf.ones(3))
    assert isinstance(uneven.value, ExchangeError)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        reduced = hvd.allreduce(tf.ones(2 + hvd.rank()))
        with pytest.raises(tf.errors.FailedPreconditionError, match="out of step") as in_session:
            session.run(reduced)
    assert isinstance(in_session.value, OutOfStepError)
    with pytest.raises(tf.errors.FailedPreconditionError):
        hvd.broadcast_object("x", root_rank=hvd.rank())
    with pytest.raises(tf.errors.InvalidArgumentError) as own:  # what is TensorFlow's stays so
        tf.function(lambda x: 1 // x)(tf.constant(0))
    assert not isinstance(own.value, SyrtosError)


def in_graphs(folder: Path) -> None:
    """Variables of a graph of TensorFlow 1 are broadcast by an operation."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=tf.constant([float(hvd.rank()), 1.0]))
        everything = hvd.broadcast_global_variables(1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(everything)
        assert session.run(variable).tolist() == [1.0, 1.0]


def one_evaluates(folder: Path) -> None:
    """What only rank 0 does is nobody else's business, and no error."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    if hvd.rank() == 0:
        model.evaluate(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
        model.save(folder / "model.keras")
    hvd.allreduce(tf.ones(1))
    assert (folder / "model.keras").exists()


def draws_apart(folder: Path) -> None:
    """Unseeded shuffles differ between workers, or all would train on the same batches."""
    order = next(iter(tf.data.Dataset.range(1000).shuffle(1000).batch(1000)))
    numpy_order = np.random.permutation(1000)
    for mine in (order, tf.constant(numpy_order)):
        both = hvd.allgather(mine[None])
        assert not np.array_equal(both[0], both[1])


def seeded(folder: Path) -> None:
    """Runs before `hvd.init`: seeds that the script sets are its own."""
    keras.utils.set_random_seed(42)
    hvd.init()
    order = np.random.permutation(100)
    drawn = tf.random.uniform([4])
    for mine in (tf.constant(order), drawn):
        both = hvd.allgather(mine[None])
        np.testing.assert_array_equal(both[0], both[1])


def diverged(folder: Path) -> None:
    """Somebody assigns a weight on one rank only."""
    import horovod.keras as hvd_keras

    class Spoils(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if hvd.rank():
                self.model.layers[0].bias.assign_add([1.0])

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(DivergenceError, match="bias"):
        model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0, callbacks=[Spoils()])


def uneven(folder: Path) -> None:
    """One worker has three batches, the other five; averages divide by two all the time."""
    for step in range(3 + 2 * hvd.rank()):
        expected = 1.0 if step < 3 else 0.5
        assert float(hvd.allreduce(tf.constant(1.0))) == expected
    assert hvd.join() == 1
    with pytest.raises(SyrtosError, match="have joined"):
        hvd.join() if hvd.rank() else hvd.allreduce(tf.constant(5.0), op=hvd.Min)  # zero would win


def synchronized_batchnorm(folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    mine = x[4 * hvd.rank() : 4 * hvd.rank() + 4]
    one, all_ = keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    whole, part = one(x, training=True), all_(mine, training=True)
    np.testing.assert_allclose(
        part, whole[4 * hvd.rank() : 4 * hvd.rank() + 4], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        np.asarray(one.moving_variance), np.asarray(all_.moving_variance), rtol=1e-5
    )


def local_variables(folder: Path) -> None:
    import horovod.keras as hvd_keras

    keras.utils.set_random_seed(hvd.rank())
    first, second = keras.layers.Dense(2), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,)), first, second])
    model.compile(
        hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[first]),
        "mse",
    )
    rng = np.random.default_rng(hvd.rank())
    model.fit(rng.normal(size=(8, 3)), rng.normal(size=(8, 1)), batch_size=4, verbose=0)
    kernels = [hvd.allgather(layer.kernel.value[None]) for layer in (first, second)]
    assert not np.allclose(kernels[0][0], kernels[0][1])
    np.testing.assert_array_equal(kernels[1][0], kernels[1][1])


def keras_2_spellings(folder: Path) -> None:
    import horovod.tensorflow.keras as hvd_keras

    optimizer = hvd_keras.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(lr=0.5, decay=0.1))
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile(optimizer, "mse", experimental_run_tf_function=False)
    model.fit_generator(
        ((np.ones((4, 3)), np.ones((4, 1))) for _ in range(3)), 3, workers=2, verbose=0
    )
    assert len(optimizer.variables()) == len(optimizer.variables)
    plain = tf.keras.optimizers.SGD(lr=0.5)
    tf.keras.backend.set_value(plain.lr, 0.25)
    decayed = tf.keras.optimizers.SGD(lr=1.0, decay=1.0)
    weight = tf.Variable(0.0)
    for _ in range(3):
        decayed.apply_gradients([(tf.constant(-1.0), weight)])
    np.testing.assert_allclose(float(weight), 1.0 + 1 / 2 + 1 / 3, rtol=1e-6)
    scaled, weight = (
        tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1.0), initial_scale=4),
        tf.Variable(0.0),
    )
    scaled.minimize(lambda: 3.0 * weight, [weight])
    np.testing.assert_allclose(float(weight), -3.0)
    with pytest.raises(ConfigurationError, match="scaled ones"):
        scaled.compute_gradients(lambda: 3.0 * weight, [weight])
    layer = tf.keras.layers.BatchNormalization(fused=True)
    assert layer(np.ones((2, 3), "float32")).shape == (2, 3)
    metric = tf.keras.metrics.Mean()
    metric(2.0)
    metric.reset_states()
    assert float(metric.result()) == 0.0
    plain.lr = float(tf.keras.backend.get_value(plain.lr)) / 2
    assert float(plain.learning_rate) == 0.125


def late(folder: Path) -> None:
    """Runs before `hvd.init`, which it calls too late."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    hvd.init()
    model.compile("sgd", "mse")
    with pytest.raises(ConfigurationError, match="before the model is made"):
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)


def mixed(folder: Path) -> None:
    tf.distribute.MirroredStrategy()


def loads(folder: Path) -> None:
    """A model saved with a distributed optimizer loads without Horovod, and by `hvd.load_model` with it."""
    import horovod.keras as hvd_keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    rng = np.random.default_rng(hvd.rank())
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 1))
    model.fit(x, y, verbose=0)
    path = folder / f"saved-{hvd.rank()}.keras"
    model.save(path)
    again = hvd_keras.load_model(path)
    assert type(again.optimizer) is keras.optimizers.Adam
    again.fit(x, y, verbose=0)
    both = hvd.allgather(tf.constant(again.get_weights()[0])[None])
    np.testing.assert_array_equal(both[0], both[1])


def resumes(folder: Path) -> None:
    """The first run dies after step 5; its last commit was after step 4. A second state begins at its own beginning."""
    first, second = (hvd.elastic.TensorFlowKerasState(_counting_model(), batch=0) for _ in range(2))

    @hvd.elastic.run
    def train(state: Any) -> None:
        begun = state.batch
        print(f"begins at {begun}")
        while state.batch < 8:
            state.model.layers[0].bias.assign_add([1.0])
            state.batch += 1
            if state is first and state.batch == 5 and begun == 0:
                hvd.allreduce(tf.ones(1))  # rank 0 has written the last commit
                raise RuntimeError("a worker dies")
            if state.batch % 2 == 0:
                state.commit()

    for state in (first, second):
        train(state)
        assert float(state.model.layers[0].bias.value[0]) == 8.0


def _counting_model() -> Any:
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, bias_initializer="zeros")])


if __name__ == "__main__":
    names, where = sys.argv[1].split(","), Path(sys.argv[2])
    if names[0] not in ("before_init", "late", "seeded"):
        hvd.init()
    for name in names:
        globals()[name](where)
        print(f"ok {name}", flush=True)
