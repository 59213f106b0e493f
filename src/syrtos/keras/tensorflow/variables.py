"""What the core asks of TensorFlow about variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.keras import state
from syrtos.keras.backend import Backend
from syrtos.keras.tensorflow import gradients, ops


class TensorFlow(Backend):
    """Keras 3 or Keras 2 on TensorFlow."""

    name = "tensorflow"

    def eager(self) -> bool:
        return tf.executing_eagerly()

    def identity(self, variable: Any) -> int:
        return id(_holder(variable))

    def has_value(self, variable: Any) -> bool:
        return bool(_holder(variable).is_initialized())

    def memory_of(self, variable: Any) -> npt.NDArray[Any]:
        tensor: Any = tensor_of(variable)
        try:
            return np.from_dlpack(tensor)
        except (TypeError, RuntimeError, BufferError, AttributeError):
            return tensor.numpy()

    def broadcast_in_graph(self, comm: Communicator, variables: Sequence[Any], root: int) -> None:
        """As ops of a `tf.function`, which run each time it is called."""
        for variable in variables:
            variable.assign(ops.broadcast(comm, tensor_of(variable), root))

    def exchanged_by(self, model: Any) -> tuple[Communicator, list[Any]] | None:
        if world.sharing() is world.current():
            return None
        optimizer = getattr(model, "optimizer", None)
        reduction = gradients.reduction_of(getattr(optimizer, "inner_optimizer", optimizer))
        if reduction is None:
            return world.sharing().comm, []
        return reduction.comm, [v for v in model.trainable_variables if state.identity(v) not in reduction.local]


def tensor_of(variable: Any) -> tf.Tensor:
    """The current value of a Keras or TensorFlow variable, in its own dtype."""
    return _holder(variable).read_value()


def _holder(variable: Any) -> tf.Variable:
    """The TensorFlow variable of a Keras one, or of Keras 2's for mixed precision."""
    held = (getattr(variable, name, None) for name in ("_value", "_variable"))
    return next((value for value in held if isinstance(value, tf.Variable)), variable)
