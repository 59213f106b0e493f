"""A script that configures TensorFlow first, as it may until something uses a device; then it trains."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

FIRST = sys.argv[1]
keras: Any = importlib.import_module(
    "tf_keras" if FIRST == "keras2" else "keras"
)  # before TensorFlow, which both import

import tensorflow as tf  # noqa: E402


def two_gpus() -> list[tf.config.PhysicalDevice]:
    """A stub: TensorFlow is told of two GPUs that this machine may not have; everything from there on is its own code."""
    from tensorflow.python.eager import context

    known = context.context()
    found = [tf.config.PhysicalDevice(f"/physical_device:GPU:{k}", "GPU") for k in range(2)]
    known._physical_devices = [*tf.config.list_physical_devices("CPU"), *found]
    known._physical_device_to_index |= {device: k for k, device in enumerate(found)}
    return found


def configure(rank: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if FIRST in ("native", "keras2"):
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        return
    gpus = two_gpus()
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(gpus[rank], "GPU")


if FIRST == "horovod":
    import horovod.tensorflow.keras as hvd

    hvd.init()
    configure(hvd.local_rank())
else:
    import syrtos

    configure(syrtos.local_rank())

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
assert tf.config.threading.get_intra_op_parallelism_threads() == 1
assert len(tf.config.list_logical_devices("CPU")) == (2 if FIRST in ("native", "keras2") else 1)
print("trained")
