"""Functions for custom loops that say themselves what is distributed. Each worker computes on its own batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from syrtos.api import ProcessSet
from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.errors import ConfigurationError
from syrtos.keras import activate, backend, state

Optimizer = TypeVar("Optimizer")


def DistributedOptimizer(optimizer: Optimizer, process_set: ProcessSet | None = None) -> Optimizer:
    """Makes an optimizer average its gradients over the workers before clipping and applying them.

    The optimizer itself is returned: its class, name and config stay, so models are saved as without syrtos. At its
    first step all workers get rank 0's weights.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, on TensorFlow or torch.
        process_set: the workers to average over; None: all.

    Raises:
        ConfigurationError: the process is not a member of ``process_set``, or Keras runs on JAX.
    """
    activate.optimizers_only()
    backend.active().average(optimizer, comm_of(process_set))
    return optimizer


def broadcast_variables(variables: Iterable[Any], root: int = 0, process_set: ProcessSet | None = None) -> None:
    """Gives every worker ``root``'s values of variables of Keras or of its framework."""
    activate.variables_only()
    state.broadcast(comm_of(process_set), variables, root)


def comm_of(process_set: ProcessSet | None) -> Communicator:
    """Returns the communicator of a process set; None: that of all workers.

    Raises:
        ConfigurationError: the process is not a member of it.
    """
    if process_set is None:
        return world.init().comm
    if process_set.comm is None:
        raise ConfigurationError(f"This worker is no member of the process set {list(process_set.ranks)}.")
    return process_set.comm
