"""A tape that returns averaged gradients, for custom loops that say themselves what is distributed.

Each worker computes on its own batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from syrtos.api import ProcessSet, comm_of, unconverted
from syrtos.comm import world
from syrtos.keras.tensorflow import gradients
from syrtos.keras.tensorflow.reduction import Reduction

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.types import Number


class DistributedGradientTape(gradients.ReducingTape):
    """A `tf.GradientTape` whose gradients are averaged over the workers.

    Usage::

        with syrtos.keras.DistributedGradientTape() as tape:
            loss = loss_fn(y, model(x))
        gradients = tape.gradient(loss, model.trainable_variables)

    Give the gradients to a plain optimizer. Sparse gradients (`tf.IndexedSlices`) stay sparse.
    """

    def __init__(
        self, tape: tf.GradientTape | None = None, process_set: ProcessSet | None = None
    ) -> None:
        """Wraps ``tape``, or a new one."""
        world.init()
        gradients.reduce_by_tape()
        super().__init__(tape or tf.GradientTape(), Reduction(comm_of(process_set)))

    # Targets and sources are of any structure, as in TensorFlow's own tape.
    @unconverted
    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, weight: Number = 1.0
    ) -> Any:
        """Returns the averaged gradients of ``target``, in the structure of ``sources``.

        None stands for a source without a gradient.

        Args:
            target: as in `tf.GradientTape.gradient`.
            sources: likewise.
            output_gradients: likewise.
            weight: how much this worker's gradients count, e.g. the number of its samples.
        """
        return self.weighted_gradient(target, sources, output_gradients, weight)
