"""One `fit` of `make bench-memory`: an MLP of 79M parameters with Adam. Prints, as a line of JSON, the memory that this worker has used for it."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import keras
import numpy as np

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
elif keras.backend.backend() == "torch":
    import torch

    torch.set_num_threads(1)

STEPS, EACH = 8, 64


def proportional() -> float:
    """Megabytes of this process; memory that several share counts as a part for each (Pss of proc(5)'s smaps_rollup)."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1e3 for line in file if line.startswith("Pss:"))


class Sampler(threading.Thread):
    """Looks at the memory every 50 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.found: list[float] = []

    def run(self) -> None:
        while not self.over.wait(0.05):
            self.found.append(proportional())


def main() -> None:
    before = proportional()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(5000, "relu") for _ in range(4)]
    model: Any = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
    model.compile(
        keras.optimizers.Adam(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    batch = EACH * int(os.environ["WORKERS"])
    random = np.random.default_rng(0)
    x = random.normal(size=(batch * STEPS, 784)).astype("float32")
    y, sampler = random.integers(0, 10, len(x)), Sampler()
    model.fit(x[: 3 * batch], y[: 3 * batch], batch_size=batch, verbose=0)  # traced and compiled
    sampler.start()
    model.fit(x, y, batch_size=batch, verbose=0)
    sampler.over.set()
    sampler.join()
    print(
        json.dumps(
            {
                "peak_mb": max(sampler.found) - before,
                "median_mb": float(np.median(sampler.found)) - before,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
