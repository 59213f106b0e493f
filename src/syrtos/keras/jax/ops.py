"""JAX arrays on the wire: the exchanges of the native API. Inside `jax.jit` XLA exchanges itself (`jax.lax.psum`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from syrtos.comm.communicator import Array, Communicator, ReduceOp
from syrtos.errors import ConfigurationError


def allreduce(comm: Communicator, value: Any, op: ReduceOp = ReduceOp.SUM) -> Any:
    """As `syrtos.allreduce`."""
    return jnp.asarray(comm.allreduce(_host(value), op))


def allgather(comm: Communicator, value: Any) -> Any:
    """As `syrtos.allgather`."""
    return jnp.asarray(comm.allgather(_host(value)))


def broadcast(comm: Communicator, value: Any, root: int = 0) -> Any:
    """As `syrtos.broadcast`."""
    return jnp.asarray(comm.broadcast(_host(value), root))


def reducescatter(comm: Communicator, value: Any, op: ReduceOp = ReduceOp.SUM) -> Any:
    """As `syrtos.reducescatter`."""
    return jnp.asarray(comm.reducescatter(_host(value), op))


def alltoall(comm: Communicator, value: Any, splits: Sequence[int] | None = None) -> tuple[Any, list[int]]:
    """As `syrtos.alltoall`."""
    received, counts = comm.alltoall(_host(value), splits)
    return jnp.asarray(received), counts


def _host(value: Any) -> Array:
    """The array in this worker's memory.

    Raises:
        ConfigurationError: it is being traced.
    """
    if isinstance(value, Tracer):
        raise ConfigurationError(
            "syrtos can't exchange inside `jax.jit`: call it outside, or use `jax.lax.psum` over a mesh of all devices."
        )
    return np.asarray(value)
