"""What syrtos is measured by, as a script for its workers: ``syrtos run -n 2 benchmarks/own.py WORK ...`` prints JSON lines.

``reduce``: sum of a float32 vector, from TensorFlow tensor to TensorFlow tensor, by one call of a `tf.function`. ``in_graph``: the
same, one after the other inside a graph, as in a training step. ``call``: a `tf.function` that does nothing, which every ``reduce``
pays for. ``floor``: two workers sum a vector that already lies in shared memory, each half of it in place: no engine can do less.
``copy``: each copies a vector of its own, once. ``step``: a `fit` step of a ``--model``, by ``--dialect`` with an optimizer of the native
API, of Horovod or of SMDDP, or under a strategy. Under plain Python a step exchanges nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import models

import syrtos
from syrtos.comm import world

WARM_UP = 3
CHAIN = 50


def timed(work: Callable[[], Any], repeats: int, together: Callable[[], Any]) -> float:
    """Median milliseconds of ``work``, all workers beginning together."""
    seconds = []
    for i in range(WARM_UP + repeats):
        together()
        started = time.perf_counter()
        work()
        if i >= WARM_UP:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e3


def reduce(nbytes: int, repeats: int) -> float:
    import tensorflow as tf

    vector = tf.ones([nbytes // 4])
    total = tf.function(syrtos.allreduce)
    assert float(total(vector)[-1]) == syrtos.size()
    return timed(lambda: total(vector), repeats, syrtos.barrier)


def in_graph(nbytes: int, repeats: int) -> float:
    import tensorflow as tf

    @tf.function
    def chain(vector: tf.Tensor) -> tf.Tensor:
        for _ in range(CHAIN):
            vector = syrtos.allreduce(vector) / 2.0
        return vector

    vector = tf.ones([nbytes // 4])
    assert float(chain(vector)[-1]) == (syrtos.size() / 2) ** CHAIN
    return timed(lambda: chain(vector), repeats, syrtos.barrier) / CHAIN


def call(nbytes: int, repeats: int) -> float:
    import tensorflow as tf

    vector, nothing = tf.ones([nbytes // 4]), tf.function(tf.identity)
    return timed(lambda: nothing(vector), repeats, syrtos.barrier)


def copy(nbytes: int, repeats: int) -> float:
    source, target = np.ones(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    return timed(lambda: np.copyto(target, source), repeats, syrtos.barrier)


def floor(nbytes: int, repeats: int) -> float:
    from mpi4py import MPI

    comm, count = MPI.COMM_WORLD, nbytes // 4
    window = MPI.Win.Allocate_shared(nbytes, 1, comm=comm)
    memory: list[Any] = [window.Shared_query(r)[0] for r in range(comm.size)]
    views = [np.frombuffer(part, np.float32, count) for part in memory]
    views[comm.rank][:] = 1.0
    start, stop = comm.rank * count // comm.size, (comm.rank + 1) * count // comm.size

    def work() -> None:
        for begin in range(start, stop, 1 << 18):
            end = min(begin + (1 << 18), stop)
            for view in views[1:]:
                np.add(views[0][begin:end], view[begin:end], out=views[0][begin:end])
        comm.Barrier()

    return timed(work, repeats, comm.Barrier)


def native(optimizer: Any) -> Any:
    import syrtos.keras

    return syrtos.keras.DistributedOptimizer(optimizer)


def horovod(optimizer: Any) -> Any:
    hvd: Any = importlib.import_module("horovod.keras")
    hvd.init()
    return hvd.DistributedOptimizer(optimizer)


def smddp(optimizer: Any) -> Any:
    sdp: Any = importlib.import_module("smdistributed.dataparallel.tensorflow")
    sdp.init()
    return sdp.DistributedOptimizer(optimizer)


def mirrored(optimizer: Any) -> Any:
    import tensorflow as tf

    tf.distribute.MirroredStrategy()
    return optimizer


DIALECTS: dict[str, Callable[[Any], Any]] = {
    "": lambda optimizer: optimizer,
    "native": native,
    "horovod": horovod,
    "smddp": smddp,
    "mirrored": mirrored,
}


def step(repeats: int, dialect: str, kind: models.Model, compiled: bool) -> float:
    import keras

    keras.utils.set_random_seed(0)
    model = kind.build(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = DIALECTS[dialect](keras.optimizers.SGD(models.LEARNING_RATE))
    model.compile(optimizer, loss, jit_compile=True if compiled else "auto")
    shared = syrtos.is_initialized() and world.sharing() is world.current()
    batch = kind.batch * (syrtos.size() if shared else 1)
    x, y = kind.data(batch)
    clock = Clock()
    model.fit(x, y, batch_size=batch, epochs=WARM_UP + repeats, verbose=0, callbacks=[keras.callbacks.LambdaCallback(
        on_batch_begin=clock.begin, on_batch_end=clock.end)])  # fmt: skip
    return statistics.median(clock.seconds[WARM_UP:]) * 1e3


def estimator_step(repeats: int) -> float:
    """The same step by an Estimator."""
    import keras
    import tensorflow as tf

    v1, estimators = getattr(tf.compat, "v1"), getattr(tf, "estimator")  # noqa: B009 - pyright does not know them

    kind = models.MODELS["mlp"]
    x, y = kind.data(kind.batch * syrtos.size())
    clock = Clock()

    class Timed(v1.train.SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            clock.begin(0)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            clock.end(0)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss = v1.losses.sparse_softmax_cross_entropy(labels, kind.build(keras)(features))
        optimizer = v1.train.GradientDescentOptimizer(models.LEARNING_RATE)
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return estimators.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = estimators.RunConfig(
        save_checkpoints_steps=None, save_summary_steps=None, log_step_count_steps=None
    )
    data = lambda: tf.data.Dataset.from_tensors((x, y)).repeat()  # noqa: E731
    estimators.Estimator(model_fn, config=config).train(
        data, hooks=[Timed()], steps=WARM_UP + repeats
    )
    return statistics.median(clock.seconds[WARM_UP:]) * 1e3


class Clock:
    """Seconds of every training step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = 0.0

    def begin(self, batch: int, logs: Any = None) -> None:
        self._started = time.perf_counter()

    def end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._started)


def main() -> None:
    """Measures, and prints on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["reduce", "in_graph", "call", "floor", "copy", "step"])
    parser.add_argument("--bytes", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--dialect", choices=[*DIALECTS, "estimator"], default="")
    parser.add_argument("--model", choices=list(models.MODELS), default="mlp")
    parser.add_argument("--compiled", action="store_true", help="by XLA, where Keras would not")
    chosen = parser.parse_args()
    size = world.current().world.size if world.is_initialized() else 1
    median, what = measured(chosen)
    if not world.is_initialized() or syrtos.rank() == 0:
        line = {
            "peer": "syrtos",
            "workers": size,
            "median_ms": round(median, 4),
            "repeats": chosen.repeats,
        }
        print(json.dumps(line | what), flush=True)


def measured(chosen: argparse.Namespace) -> tuple[float, dict[str, Any]]:
    """Milliseconds, and of what."""
    if chosen.work != "step":
        works = {"reduce": reduce, "in_graph": in_graph, "call": call, "floor": floor, "copy": copy}
        return works[chosen.work](chosen.bytes, chosen.repeats), {
            "work": chosen.work,
            "bytes": chosen.bytes,
        }
    how = chosen.dialect or "compiled" * chosen.compiled
    what = {"work": " ".join(filter(None, ("step of", chosen.model, how)))}
    if chosen.dialect == "estimator":
        return estimator_step(chosen.repeats), what
    kind = models.MODELS[chosen.model]
    return step(chosen.repeats, chosen.dialect, kind, chosen.compiled), what


if __name__ == "__main__":
    main()
