"""The implementation of `syrtos.keras.backend.Backend` for TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Array, Communicator
from syrtos.keras import updates
from syrtos.keras.backend import Backend, Step
from syrtos.keras.features import sharding
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import (
    assignments,
    finite_steps,
    gradients,
    ops,
    profiler,
    tf_internals_graphs,
)
from syrtos.keras.tensorflow.partition.draw_counters import KeptCounters
from syrtos.keras.tensorflow.reduction import Reduction
from syrtos.keras.trainer import timing
from syrtos.observe.trace import ProfiledEvent

if TYPE_CHECKING:
    from syrtos.keras.protocols import FrameworkVariable, Model, Optimizer, Variable
    from syrtos.keras.tensorflow.types import Gradient
    from syrtos.keras.updates import Update


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

    def held_object(self, variable: FrameworkVariable) -> tf.Variable:
        return _holder(variable)

    def has_value(self, variable: FrameworkVariable) -> bool:
        return bool(_holder(variable).is_initialized())

    def memory_of(self, variable: FrameworkVariable) -> Array:
        tensor: Any = tensor_of(variable)  # whose stub lacks what NumPy asks for
        # Without a copy where the tensor is on the host, and NumPy knows its dtype.
        try:
            return np.from_dlpack(tensor)
        except (TypeError, RuntimeError, BufferError, AttributeError):
            return tensor.numpy()

    def on_host(
        self, function: Callable[[Array], Array], value: tf.Tensor, shape: tuple[int, ...]
    ) -> tf.Tensor:
        (result,) = ops.exchange(
            lambda array: [function(array)], [tf.convert_to_tensor(value)], [value.dtype]
        )
        return tf.ensure_shape(result, shape)

    def splits_variables(self) -> bool:
        return sharding.is_asked()

    def gathering_variables(self, model: Model) -> contextlib.AbstractContextManager[None]:
        return sharding.gathering_variables(model)

    def draws(self) -> dict[str, Array]:
        return world.part(KeptCounters).arrays()

    def put_back_draws(self, draws: dict[str, Array]) -> None:
        world.part(KeptCounters).put_back(draws)

    def broadcast_in_graph(
        self, comm: Communicator, variables: Sequence[Variable], root: int
    ) -> None:
        """Adds the broadcasts as ops of a `tf.function`, which run each time it is called."""
        for variable in variables:
            variable.assign(ops.broadcast(comm, tensor_of(variable), root))

    def exchanged_by(self, model: Model) -> tuple[Communicator, list[Variable]] | None:
        if world.sharing() is world.current():
            return None
        optimizer = getattr(model, "optimizer", None)
        reduction = gradients.reduction_of(getattr(optimizer, "inner_optimizer", optimizer))
        if reduction is None:
            return world.sharing().comm, []
        return reduction.comm, [
            v for v in model.trainable_variables if state.identity(v) not in reduction.local
        ]

    def current_step(self) -> Step | None:
        return assignments.current_step()

    def rank_to_seed(self) -> int:
        found, session = assignments.current_step(), world.current()
        # Workers at their own pace share no step; in a graph of a script's own nothing is
        # initialized either, and no data is shuffled.
        own_graph = tf_internals_graphs.graph() and not tf_internals_graphs.is_of_dataset()
        in_graph = bool(assignments.training_now() or own_graph)
        by_rank = (
            found.draws_by_rank and not found.draws_alike
            if found
            else session.options.asynchronous and in_graph
        )
        return session.world.rank if by_rank else 0

    def reduce_gradients(
        self, optimizer: Optimizer, grads: Sequence[Gradient | None]
    ) -> Sequence[Gradient | None]:
        return gradients.reduce_gradients(optimizer, grads)

    def apply_if_rows(
        self,
        update: Update,
        grads: Sequence[Gradient | None],
        apply: Callable[[Sequence[Gradient | None]], None],
    ) -> None:
        gradients.apply_if_rows(update, grads, apply)

    def apply_if_finite(
        self,
        update: Update,
        grads: Sequence[Gradient | None],
        apply: Callable[[Sequence[Gradient | None]], None],
    ) -> None:
        finite_steps.apply_if_finite(update, grads, apply)

    def check_finite(
        self, update: Update, grads: Sequence[Gradient | None], own: Sequence[Gradient | None]
    ) -> Sequence[Gradient | None]:
        return finite_steps.check_finite(update, grads, own)

    def undo_if_left_out(
        self, model: Model, session: world.Session, step: Callable[[], object]
    ) -> Callable[[], object]:
        return finite_steps.undo_if_left_out(model, session, step)

    def average(self, optimizer: Optimizer, comm: Communicator) -> None:
        updates.set_reduction(optimizer, Reduction(comm))

    def finite_everywhere(self, optimizer: Optimizer, finite: tf.Tensor) -> tf.Tensor:
        return gradients.finite_everywhere(optimizer, finite)

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        with assignments.pausing_notes(), timing.updating():
            yield


def tensor_of(variable: FrameworkVariable) -> tf.Tensor:
    """Returns the current value of a Keras or TensorFlow variable, in its own dtype."""
    return _holder(variable).read_value()


def _holder(variable: object) -> tf.Variable:
    """Returns the TensorFlow variable of a Keras one, or of Keras 2's for mixed precision."""
    held = (getattr(variable, name, None) for name in ("_value", "_variable"))
    return next(
        (value for value in held if isinstance(value, tf.Variable)), cast("tf.Variable", variable)
    )
