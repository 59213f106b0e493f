"""The layer `hvd.SyncBatchNormalization`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syrtos.dialects import keras2
from syrtos.keras.tensorflow.strategy import replica_of_world

if TYPE_CHECKING:
    import tensorflow as tf

_BatchNormalization = keras2.keras().layers.BatchNormalization


class SyncBatchNormalization(_BatchNormalization):
    """BatchNormalization over the batches of all workers."""

    def __init__(self, fused: bool | None = False, **kwargs: object) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        super().__init__(**{**kwargs, "synchronized": True})

    def call(
        self,
        inputs: tf.Tensor,
        training: bool | tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Normalizes as the base class does, in a context in which Keras sums over all workers."""
        with replica_of_world():
            return super().call(inputs, training=training, mask=mask)
