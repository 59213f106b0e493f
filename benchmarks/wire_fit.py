"""One `fit` of `make bench-wire`: prints a JSON line for each epoch, with the seconds trained so far and the validation loss."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class Seconds(keras.callbacks.Callback):
    """Counts what training takes, without evaluations and without the first step, which is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = 0.0
        self.steps = 0
        self._since: float | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if self._since is not None:
            self.trained += now - self._since
            self.steps += 1
        self._since = now

    def on_test_begin(self, logs: Any = None) -> None:
        if self._since is not None:  # what is exchanged at an epoch's end is training
            self.trained += time.perf_counter() - self._since
        self._since = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        print(
            json.dumps(
                {
                    "seconds": round(self.trained, 3),
                    "steps": self.steps,
                    "val_loss": logs["val_loss"],
                }
            ),
            flush=True,
        )


def characters() -> tuple[Any, Any, Any, int]:
    """The transformer of examples/chars.py: 0.5M parameters."""
    import chars  # pyright: ignore[reportMissingImports] - an example, found by the line above

    codes = chars.read_library()
    held_out = len(codes) // 20
    x, y = chars.windows(codes[:-held_out])
    order = np.random.default_rng(0).permutation(len(x))
    test = tuple(part[:256] for part in chars.windows(codes[-held_out:]))
    model = chars.build()
    model.compile(
        keras.optimizers.Adam(2e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model, (x[order], y[order]), test, chars.BATCH


def mlp() -> tuple[Any, Any, Any, int]:
    """79M parameters."""
    random = np.random.default_rng(0)
    x = random.normal(size=(8192, 784)).astype("float32")
    y = (x @ random.normal(size=(784, 10))).argmax(1)
    layers = [keras.layers.Dense(5000, "relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
    model.compile(
        keras.optimizers.SGD(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model, (x[:-256], y[:-256]), (x[-256:], y[-256:]), 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["characters", "mlp"])
    parser.add_argument("--steps", type=int, required=True, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=1)
    chosen = parser.parse_args()
    keras.utils.set_random_seed(0)
    model, train, test, batch = {"characters": characters, "mlp": mlp}[chosen.model]()
    dataset = tf.data.Dataset.from_tensor_slices(train).repeat().batch(batch)
    model.fit(
        dataset,
        epochs=chosen.epochs,
        steps_per_epoch=chosen.steps,
        validation_data=tf.data.Dataset.from_tensor_slices(test).batch(batch),
        callbacks=[Seconds()],
        verbose=0,
    )


if __name__ == "__main__":
    main()
