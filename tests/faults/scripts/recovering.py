"""Trains, and ends workers on the way: ``recovering.py OUT DATA HOW:RANK:UPDATE ...``. OUT gets the weights, histories and a log.

Each end happens once, after so many updates of the optimizer (over all calls of `fit`).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import syrtos
from syrtos.keras.replica import state

# A script may empty its environment.
for name in [name for name in os.environ if name.startswith("SYRTOS_")]:
    del os.environ[name]

KERAS_2 = bool(os.environ.get("TF_USE_LEGACY_KERAS"))
keras: Any = importlib.import_module("tf_keras" if KERAS_2 else "keras")
OUT, DATA, *ENDS = sys.argv[1:]
Path(OUT).mkdir(exist_ok=True)
SAMPLES, BATCH = 211, 16
PACE = float(os.environ.get("PACE", "0"))  # seconds after each step, until OUT has a file `hurry`
STOP = 60  # in the middle of the second epoch of the second `fit`


class End(keras.callbacks.Callback):
    """Ends a worker once; it counts batches, as a callback of a user's own might."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if PACE and not Path(OUT, "hurry").exists():
            time.sleep(PACE)
        self.seen += 1
        print("batch", self.seen, flush=True)
        self.losses.append(logs["loss"])
        if syrtos.rank() == 0:
            with Path(OUT, "times.txt").open("a") as file:
                print(time.time(), self.seen, file=file)
        if self.seen == STOP:
            self.model.stop_training = True
        for end in ENDS:
            if end == "always":
                continue
            how, rank, update = end.split(":")
            mark = Path(OUT, end.replace(":", "-"))
            if self.seen == int(update) and syrtos.rank() == int(rank) and not mark.exists():
                mark.touch()
                self.do(how)

    def do(self, how: str) -> None:
        if how == "raise":
            raise RuntimeError("once only")
        if how == "flip":  # a bit of memory
            kernel = state.memory_of(self.model.trainable_variables[0])
            ctypes.c_uint32.from_address(kernel.ctypes.data).value ^= 1 << 20
            return
        if how == "disk":
            with contextlib.suppress(OSError), Path(OUT, "../run/fill").open("wb") as file:
                while True:
                    file.write(b"\0" * (1 << 16))
            how = "SIGKILL"
        if how == "reader":
            os.kill(int(Path(OUT, "reader").read_text()), signal.SIGKILL)
            how = "SIGKILL"
        if how == "exit":
            os._exit(0)
        if how == "helper":
            stop_helper()
            how = "SIGKILL"
        os.kill(os.getpid(), getattr(signal, how))


def stop_helper() -> None:
    """Stops the process that workers are forked from, if there is one."""
    parent = psutil.Process().parent()
    assert parent is not None
    launcher = parent.parent() if "zygote.py" in " ".join(parent.cmdline()) else parent
    assert launcher is not None
    for child in launcher.children():
        if "zygote.py" in " ".join(child.cmdline()):
            child.suspend()


class Dies(keras.callbacks.Callback):
    """Ends a worker each time that it comes to this epoch's evaluation."""

    def on_test_begin(self, logs: Any = None) -> None:
        if "always" in ENDS and syrtos.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(SAMPLES, 6)).astype("float32")
    return x, (x[:, :1] * x[:, 1:2]).astype("float32")


def generator() -> Iterator[Any]:
    """Draws from a generator of its own: Keras draws batches ahead, so what a second `fit` would find in NumPy's depends on chance."""
    x, y = arrays()
    rng = np.random.default_rng(5)
    while True:
        chosen = rng.permutation(SAMPLES)[:BATCH]
        yield x[chosen] + rng.normal(0.0, 0.01, (BATCH, 6)).astype("float32"), y[chosen]


class Shuffled(keras.utils.PyDataset if not KERAS_2 else object):
    """Is read ahead by threads, and has another order in each epoch."""

    def __init__(self) -> None:
        super().__init__(workers=2)
        self.x, self.y = arrays()
        self.rng = np.random.default_rng(5)

    def __len__(self) -> int:
        return -(-SAMPLES // BATCH)

    def __getitem__(self, index: int) -> Any:
        part = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[part], self.y[part]

    def on_epoch_end(self) -> None:
        order = self.rng.permutation(SAMPLES)
        self.x, self.y = self.x[order], self.y[order]


def fit(model: Any, epochs: int, callbacks: list[Any]) -> Any:
    x, y = arrays()
    given: dict[str, Any] = {
        "epochs": epochs,
        "verbose": 0,
        "callbacks": callbacks,
        "validation_data": (x[:50], y[:50]),
    }
    if DATA == "arrays":
        return model.fit(x, y, batch_size=BATCH, **given)
    if DATA == "generator":
        return model.fit(generator(), steps_per_epoch=13, **given)
    if DATA == "sequence":
        return model.fit(Shuffled(), **given)
    if DATA == "planned":
        import syrtos.data

        return model.fit(syrtos.data.from_arrays(x, y, batch_size=BATCH, seed=4), **given)
    import tensorflow as tf

    pipeline = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(BATCH)
    if DATA == "filtered":  # nobody knows its length
        pipeline = pipeline.filter(lambda a, b: True)
    return model.fit(
        pipeline.map(lambda a, b: (a + tf.random.normal(tf.shape(a), stddev=0.01), b)), **given
    )


class Total(keras.metrics.Metric):
    """Makes its variable when it is used first, and gives it as its result."""

    total: Any = None

    def update_state(self, values: Any) -> None:
        if self.total is None:
            self.total = self.add_variable((), "zeros", name="total")
        self.total.assign_add(keras.ops.sum(values))

    def result(self) -> Any:
        return keras.ops.convert_to_tensor(0.0) if self.total is None else self.total


class Evaluated(keras.Sequential):
    """With TensorFlow, a model that makes a variable in its first evaluation."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__(layers)
        self.total = Total()

    def test_step(self, data: Any) -> Any:
        self.total.update_state(data[1])
        return {**super().test_step(data), "total": self.total.result()}


keras.utils.set_random_seed(11)
model = (Evaluated if DATA == "planned" else keras.Sequential)(
    [
        keras.layers.Dense(12, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1),
    ]
)
options = {"gradient_accumulation_steps": 2} if DATA == "generator" and not KERAS_2 else {}
several = {"steps_per_execution": 3} if DATA == "pipeline" else {}
optimizer = keras.optimizers.Adam(0.01, **options)
if KERAS_2:
    optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic_growth_steps=9)
model.compile(optimizer, "mse", metrics=["mae"], **several)
end = End()
stop = keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5, min_delta=0.02)
first = fit(model, 3, [end, Dies(), stop, plateau, keras.callbacks.CSVLogger(f"{OUT}/log.csv")])
between = [*model.evaluate(*arrays(), verbose=0), float(optimizer.loss_scale) if KERAS_2 else 1.0]
model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mae")
second = fit(model, 2, [end])
if syrtos.rank() == 0:
    np.savez(f"{OUT}/weights.npz", *model.get_weights())
    results = [
        first.history,
        second.history,
        first.epoch,
        second.epoch,
        between,
        end.seen,
        end.losses,
    ]
    Path(OUT, "results.json").write_text(json.dumps(results, default=float))
