"""Functions for custom loops that say themselves what is distributed.

Each worker computes on its own batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from syrtos.api import ProcessSet, comm_of
from syrtos.comm import world
from syrtos.keras import activate, backend
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.keras.protocols import FrameworkVariable, Optimizer

OptimizerT = TypeVar("OptimizerT", bound="Optimizer")


def DistributedOptimizer(
    optimizer: OptimizerT, process_set: ProcessSet | None = None
) -> OptimizerT:
    """Makes an optimizer average its gradients over the workers before clipping and applying them.

    The optimizer itself is returned: its class, name and config stay, so models are saved as
    without syrtos. At its first step all workers get rank 0's weights.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, on TensorFlow or torch.
        process_set: the workers to average over; None: all.

    Raises:
        ConfigurationError: the process is not a member of ``process_set``, or Keras runs on JAX.
    """
    activate.optimizers_only()
    world.init()
    backend.active().average(optimizer, comm_of(process_set))
    return optimizer


def broadcast_variables(
    variables: Iterable[FrameworkVariable], root: int = 0, process_set: ProcessSet | None = None
) -> None:
    """Gives every worker ``root``'s values of variables of Keras or of its framework."""
    activate.variables_only()
    world.init()
    state.broadcast(comm_of(process_set), variables, root)
