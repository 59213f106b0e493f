"""The implementation of `syrtos.keras.backend.Backend` for TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Array, Communicator
from syrtos.keras.backend import Backend, Step
from syrtos.keras.features import asynchronous, sharding
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import gradients, ops, profiler, step, tf_internals_graphs
from syrtos.keras.trainer import timing
from syrtos.observe.trace import ProfiledEvent


class TensorFlow(Backend):
    """Keras 3 or Keras 2 on TensorFlow."""

    name = "tensorflow"

    def device_memory(self) -> int:
        gpus = tf.config.list_logical_devices("GPU")
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if gpus else 0

    def start_profiler(self, folder: Path) -> Callable[[], Sequence[ProfiledEvent]]:
        return profiler.start(folder)

    def annotation(self, name: str) -> contextlib.AbstractContextManager[object]:
        return profiler.annotation(name)

    def eager(self) -> bool:
        return tf.executing_eagerly()

    def held_object(self, variable: Any) -> Any:
        return _holder(variable)

    def has_value(self, variable: Any) -> bool:
        return bool(_holder(variable).is_initialized())

    def memory_of(self, variable: Any) -> npt.NDArray[Any]:
        tensor: Any = tensor_of(variable)
        try:
            return np.from_dlpack(tensor)
        except (TypeError, RuntimeError, BufferError, AttributeError):
            return tensor.numpy()

    def on_host(self, function: Callable[[Array], Array], value: Any, shape: tuple[int, ...]) -> Any:
        (result,) = ops.exchange(lambda array: [function(array)], [tf.convert_to_tensor(value)], [value.dtype])
        return tf.ensure_shape(result, shape)

    def splits_variables(self) -> bool:
        return sharding.is_asked()

    def gathering_variables(self, model: Any) -> contextlib.AbstractContextManager[None]:
        return sharding.gathering_variables(model)

    def broadcast_in_graph(self, comm: Communicator, variables: Sequence[Any], root: int) -> None:
        """Adds the broadcasts as ops of a `tf.function`, which run each time it is called."""
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

    def current_step(self) -> Step | None:
        return step.current_step()

    def rank_to_seed(self) -> int:
        found, rank = step.current_step(), world.current().world.rank
        # Workers at their own pace share no step; in a graph of a script's own nothing is initialized either, and no
        # data is shuffled.
        own_graph = tf_internals_graphs.graph() and not tf_internals_graphs.is_of_dataset()
        in_graph = bool(step.training_now() or own_graph)
        training = found.training if found else bool(asynchronous.asynchronous_servers() and in_graph)
        return rank if training else 0

    def reduce_gradients(self, optimizer: Any, grads: Sequence[Any]) -> Sequence[Any]:
        return gradients.reduce_gradients(optimizer, grads)

    def average(self, optimizer: Any, comm: Communicator) -> None:
        gradients.mark(optimizer, gradients.Reduction(comm))

    def finite_everywhere(self, optimizer: Any, finite: Any) -> Any:
        return gradients.finite_everywhere(optimizer, finite)

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        with step.pausing_notes(), timing.updating():
            yield


def tensor_of(variable: Any) -> tf.Tensor:
    """Returns the current value of a Keras or TensorFlow variable, in its own dtype."""
    return _holder(variable).read_value()


def _holder(variable: Any) -> tf.Variable:
    """Returns the TensorFlow variable of a Keras one, or of Keras 2's for mixed precision."""
    held = (getattr(variable, name, None) for name in ("_value", "_variable"))
    return next((value for value in held if isinstance(value, tf.Variable)), variable)
