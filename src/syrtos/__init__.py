"""Distributed training for Keras: the script you have, on many workers, with the same mathematics.

`syrtos run -n 4 train.py` needs nothing from this module. Import it to be explicit::

    import syrtos

    syrtos.init()
    print(syrtos.rank(), "of", syrtos.size())
    total = syrtos.allreduce(values)

The functions take and return NumPy arrays, or TensorFlow tensors inside and outside `tf.function`.
Importing this module loads no framework.
"""

from __future__ import annotations

import importlib

from syrtos._version import __version__ as __version__

# `typing` takes longer to import than all else that a command needs before Ctrl-C ends it quietly.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from syrtos.api import (
        ProcessSet,
        allgather,
        allgather_object,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        broadcast_object,
        init,
        is_initialized,
        local_rank,
        local_size,
        node_rank,
        process_set,
        rank,
        reducescatter,
        shutdown,
        size,
    )
    from syrtos.comm.communicator import ReduceOp
    from syrtos.errors import SyrtosError
    from syrtos.notebook.launcher import notebook_launcher
    from syrtos.remote_calls import remote
    from syrtos.settings import Options
    from syrtos_jobs.client.estimator import Estimator

__all__ = [
    "Estimator",
    "Options",
    "ProcessSet",
    "ReduceOp",
    "SyrtosError",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "node_rank",
    "notebook_launcher",
    "process_set",
    "rank",
    "reducescatter",
    "remote",
    "shutdown",
    "size",
]

_HOMES = {
    "ReduceOp": "syrtos.comm.communicator",
    "SyrtosError": "syrtos.errors",
    "notebook_launcher": "syrtos.notebook.launcher",
    "remote": "syrtos.remote_calls",
    "Options": "syrtos.settings",
}


if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("data", "ray"):
        return importlib.import_module(f"syrtos.{name}")
    if name == "Estimator":  # of a package beside this one
        entry_points = importlib.import_module("syrtos.entry_points")
        return entry_points.load(entry_points.NAMES, name)
    if name not in __all__:
        raise AttributeError(f"module 'syrtos' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "syrtos.api")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
