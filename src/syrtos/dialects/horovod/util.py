"""Names that scripts import from Horovod's `common.util`, `tensorflow.util` and `runner`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import tensorflow as tf
from packaging.version import Version

from syrtos.comm import world
from syrtos.dialects.horovod import run
from syrtos.dialects.horovod.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)

__all__ = [
    "ccl_built", "cuda_built", "ddl_built", "get_env_rank_and_size", "gloo_built", "in_thread",
    "is_version_greater_equal_than", "mpi_built", "nccl_built", "rocm_built", "run",
]  # fmt: skip


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Returns whether version ``ver`` is at least ``target``."""
    return Version(ver) >= Version(target)


def _executing_eagerly() -> bool:
    """Returns whether operations run at once."""
    return tf.executing_eagerly()


def get_env_rank_and_size() -> tuple[int, int]:
    """Returns this worker's rank and the number of workers, also before `hvd.init`."""
    place = world.init().world
    return place.rank, place.size


def in_thread(
    target: Callable[..., object],
    args: Sequence[object] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls ``target(*args)`` in a new thread, and returns the thread."""
    del silent
    thread = threading.Thread(target=target, args=tuple(args), name=name, daemon=daemon)
    thread.start()
    return thread
