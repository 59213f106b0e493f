"""Exchanges of JAX arrays, those of the native API.

Inside `jax.jit` XLA exchanges itself (`jax.lax.psum`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from syrtos.comm.communicator import Array, Communicator, ReduceOp
from syrtos.errors import ConfigurationError

if TYPE_CHECKING:
    import jax
    import numpy.typing as npt


def allreduce(comm: Communicator, value: npt.ArrayLike, op: ReduceOp = ReduceOp.SUM) -> jax.Array:
    """Reduces an array as `syrtos.allreduce` does."""
    return jnp.asarray(comm.allreduce(_host(value), op))


def allgather(comm: Communicator, value: npt.ArrayLike) -> jax.Array:
    """Gathers rows as `syrtos.allgather` does."""
    return jnp.asarray(comm.allgather(_host(value)))


def broadcast(comm: Communicator, value: npt.ArrayLike, root: int = 0) -> jax.Array:
    """Broadcasts an array as `syrtos.broadcast` does."""
    return jnp.asarray(comm.broadcast(_host(value), root))


def reducescatter(
    comm: Communicator, value: npt.ArrayLike, op: ReduceOp = ReduceOp.SUM
) -> jax.Array:
    """Reduces and scatters an array as `syrtos.reducescatter` does."""
    return jnp.asarray(comm.reducescatter(_host(value), op))


def alltoall(
    comm: Communicator, value: npt.ArrayLike, splits: Sequence[int] | None = None
) -> tuple[jax.Array, list[int]]:
    """Exchanges rows as `syrtos.alltoall` does."""
    received, counts = comm.alltoall(_host(value), splits)
    return jnp.asarray(received), counts


def _host(value: npt.ArrayLike) -> Array:
    """Returns the array in the host's memory.

    Raises:
        ConfigurationError: the array is being traced.
    """
    if isinstance(value, Tracer):
        raise ConfigurationError(
            "syrtos can't exchange inside `jax.jit`: call it outside, or use `jax.lax.psum` over a"
            " mesh of all devices."
        )
    return np.asarray(value)
