"""For custom loops that say themselves what is distributed. Each worker computes on its own batch.

Two ways, of which a loop uses one: an optimizer that averages the gradients it is given, or a tape that returns averaged
gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import tensorflow as tf

from syrtos.api import ProcessSet, unconverted
from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.errors import ConfigurationError
from syrtos.keras import activate, state
from syrtos.keras.tensorflow import gradients

Optimizer = TypeVar("Optimizer")


def DistributedOptimizer(optimizer: Optimizer, process_set: ProcessSet | None = None) -> Optimizer:
    """Makes an optimizer average its gradients over the workers before clipping and applying them.

    The optimizer itself is returned: its class, name and config stay, so models are saved as without syrtos. At its first step
    all workers get rank 0's weights.

    Args:
        optimizer: a `keras.optimizers.Optimizer`.
        process_set: the workers to average over; None: all.

    Raises:
        ConfigurationError: the process is not a member of ``process_set``.
    """
    activate.optimizers_only()
    gradients.mark(optimizer, gradients.Reduction(_comm(process_set)))
    return optimizer


class DistributedGradientTape(gradients.ReducingTape):
    """A `tf.GradientTape` whose gradients are averaged over the workers.

    Usage::

        with syrtos.keras.DistributedGradientTape() as tape:
            loss = loss_fn(y, model(x))
        gradients = tape.gradient(loss, model.trainable_variables)

    Give the gradients to a plain optimizer. Sparse gradients (`tf.IndexedSlices`) stay sparse.
    """

    def __init__(self, tape: tf.GradientTape | None = None, process_set: ProcessSet | None = None) -> None:
        """Wraps ``tape``, or a new one."""
        gradients.reduce_by_tape()
        super().__init__(tape or tf.GradientTape(), gradients.Reduction(_comm(process_set)))

    @unconverted
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, weight: Any = 1.0) -> Any:
        """The averaged gradients of ``target``, in the structure of ``sources``; None where there is none.

        Args:
            target: what `tf.GradientTape.gradient` takes.
            sources: likewise.
            output_gradients: likewise.
            weight: how much this worker's gradients count, e.g. the number of its samples.
        """
        return self.weighted_gradient(target, sources, output_gradients, weight)


def broadcast_variables(variables: Iterable[Any], root: int = 0, process_set: ProcessSet | None = None) -> None:
    """Gives every worker ``root``'s values of Keras or TensorFlow variables."""
    state.broadcast(_comm(process_set), variables, root)


def _comm(process_set: ProcessSet | None) -> Communicator:
    if process_set is None:
        return world.init().comm
    if process_set.comm is None:
        raise ConfigurationError(f"This worker is no member of the process set {list(process_set.ranks)}.")
    return process_set.comm
