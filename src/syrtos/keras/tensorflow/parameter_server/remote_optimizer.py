"""Optimizers with weights held by parameter servers: workers give gradients, get new weights."""

from __future__ import annotations

import collections
import weakref
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Array
from syrtos.errors import ConfigurationError, ExchangeError, StalledError
from syrtos.keras import keras_internals
from syrtos.keras.features import asynchronous, partition
from syrtos.keras.features.partition import Part
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import gradients, ops
from syrtos.keras.tensorflow.assignments import current_step
from syrtos.keras.tensorflow.parameter_server.server import pack_arrays
from syrtos.keras.tensorflow.reduction import times
from syrtos.keras.tensorflow.types import Gradient
from syrtos.keras.tensorflow.variables import tensor_of

if TYPE_CHECKING:
    from syrtos.comm.requests import Fields
    from syrtos.keras.protocols import Optimizer, Variable
    from syrtos.keras.tensorflow.parameter_server.server import Gradient as GivenGradient
    from syrtos.keras.tensorflow.parameter_server.server import VariableFacts

    class _Variable(Variable, Protocol):
        constraint: object

        @property
        def dtype(self) -> str | tf.DType: ...


_CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")


def apply(optimizer: Optimizer, grads: Sequence[Gradient], variables: Sequence[Variable]) -> None:
    """Makes a step of ``optimizer`` on the servers; assigns their weights to all variables here."""
    found = asynchronous.remote_of(optimizer)
    if found is None:
        # Eagerly, so once, also where the step is being traced.
        with tf.init_scope():
            found = RemoteOptimizer(
                optimizer,
                {state.identity(v) for v, g in zip(variables, grads, strict=True) if _is_rows(g)},
            )
            asynchronous.hold(found)
            found.begin()
    found.step(grads, variables)


class RemoteOptimizer:
    """An optimizer whose weights servers hold, as its workers see it."""

    def __init__(self, optimizer: Optimizer, tables: set[int]) -> None:
        """
        Args:
            optimizer: the Keras optimizer.
            tables: the variables (by `state.identity`) whose gradients are some of their rows.
        """
        # The optimizer's record leads here: it would keep its optimizer alive.
        self._optimizer = weakref.ref(optimizer)
        asked = asynchronous.servers()
        assert asked is not None
        self._servers = asked
        self._keras = keras_internals.keras_of(optimizer)
        self._key = ""
        self._begun = 0
        self.variables = cast("list[_Variable]", keras_internals.trained_by(optimizer))
        self._paths = [keras_internals.path_of(v) for v in self.variables]
        names = ",".join([optimizer.name, *self._paths])
        self._number = asynchronous.number_of(str(zlib.crc32(names.encode())))
        self._index = {state.identity(v): i for i, v in enumerate(self.variables)}
        self._tables = {i for i, v in enumerate(self.variables) if state.identity(v) in tables}
        # Of an optimizer that treats each number by itself a variable can be cut anywhere.
        cut = type(optimizer).__name__ in keras_internals.ELEMENTWISE and type(
            optimizer
        ).__module__.startswith(("keras.", "tf_keras."))
        if cut and not any(v.constraint for v in self.variables):
            self._parts = partition.divide_evenly(self.variables, self._tables, asked.count)
        else:
            self._parts = partition.by_variable(self.variables, asked.count)

    @property
    def optimizer(self) -> Optimizer:
        """The Keras optimizer, which the caller of a method holds."""
        found = self._optimizer()
        assert found is not None
        return found

    # -- a step ----------------------------------------------------------------------------------

    def step(self, grads: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        """Gives gradients to the servers, eagerly or in a graph, and takes their weights."""
        present = [self._index[state.identity(v)] for v in variables]
        weight, given = self._weigh(
            [self._as_held(i, g) for i, g in zip(present, grads, strict=True)]
        )
        scheduled = keras_internals.has_schedule(self.optimizer)
        rate = tf.constant(-1.0) if scheduled else tf.cast(self.optimizer.learning_rate, tf.float32)

        def push(weight: Array, rate: Array, *arrays: Array) -> list[Array]:
            chosen = None if scheduled else float(rate)
            pushed = tf.nest.pack_sequence_as(inputs, arrays)
            return self._push(
                {"weight": float(weight), "rate": chosen}, dict(zip(present, pushed, strict=True))
            )

        inputs = [(g.values, g.indices) if _is_rows(g) else g for g in given]
        dtypes = [tf.int64, *(tf.as_dtype(v.dtype) for v in self.variables)]
        iterations, *values = ops.exchange(push, [weight, rate, *tf.nest.flatten(inputs)], dtypes)
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(tf.ensure_shape(value, variable.shape))
        # Keras adds 1 after this.
        before = tf.ensure_shape(iterations, []) - 1
        counter = keras_internals.updates_of(self.optimizer)
        counter.assign(tf.cast(before, cast("tf.DType", counter.dtype)))

    def _as_held(self, variable: int, gradient: Gradient) -> Gradient:
        """Returns the gradient as rows if its variable is cut by rows, else as a whole tensor."""
        if variable not in self._tables:
            return tf.convert_to_tensor(gradient)
        if isinstance(gradient, tf.IndexedSlices):
            return gradient
        return tf.IndexedSlices(gradient, tf.range(tf.shape(gradient)[0]), tf.shape(gradient))

    def _weigh(self, grads: list[Gradient]) -> tuple[tf.Tensor, list[Gradient]]:
        """Returns this worker's weight in an update, and its gradients for the servers.

        Where workers update at their own pace, the weight is 1, and the worker clips the gradients
        itself. Where updates are made together, the weight in `fit` is this worker's number of
        samples; outside of it the weight is 1, and gradients are scaled by
        `gradients.sum_of_means`.
        """
        if not self._servers.synchronous:
            return tf.constant(1.0), keras_internals.clip(self.optimizer, grads)
        step = current_step()
        if step is not None:
            return step.samples, grads
        factor = gradients.sum_of_means(world.current().comm.size)
        return tf.constant(1.0), [times(g, factor) for g in grads]

    def _push(self, fields: Fields, given: dict[int, GivenGradient]) -> list[Array]:
        """Pushes gradients; returns the servers' number of updates and all variables' new values.

        ``given`` has by variable its gradient, or the values and indices of some rows of it.
        """
        messages = []
        for parts in self._parts:
            mine = [(i, part) for i, part in enumerate(parts) if part.variable in given]
            whole = [(given[part.variable], part) for _, part in mine]
            dense = [
                g.reshape(-1)[part.start : part.stop]
                for g, part in whole
                if not isinstance(g, tuple)
            ]
            rows = [part.rows_of(*g) for g, part in whole if isinstance(g, tuple)]
            present = {
                "present": [i for i, _ in mine],
                "rows": [i for i, part in mine if self._by_rows(part)],
            }
            messages.append(
                (
                    {**fields, **present},
                    [pack_arrays(dense), *(array for pair in rows for array in pair)],
                )
            )
        answers = self._servers.push(self._key, messages)
        iterations = max(answer["iterations"] for answer, _ in answers)
        return [
            np.asarray(iterations, np.int64),
            *self._assemble([arrays[0] for _, arrays in answers]),
        ]

    def _by_rows(self, part: Part) -> bool:
        return part.variable in self._tables

    def _assemble(self, data: Sequence[Array]) -> list[Array]:
        """Returns the values of all variables, from the servers' bytes."""
        values = [
            np.empty(tuple(v.shape), tf.as_dtype(v.dtype).as_numpy_dtype) for v in self.variables
        ]
        for parts, one in zip(self._parts, data, strict=True):
            at = 0
            for part in parts:
                flat = values[part.variable].reshape(-1)[part.start : part.stop]
                flat[...] = one[at : at + flat.nbytes].view(flat.dtype)
                at += flat.nbytes
        return values

    # -- its beginning and its memory --------------------------------------------------------------

    def begin(self) -> None:
        """Replaces the servers' weights and optimizer state by worker 0's; takes their weights."""
        if getattr(self.optimizer, "gradient_accumulation_steps", None) and any(
            getattr(self.optimizer, name) for name in _CLIPS
        ):
            raise ConfigurationError(
                "Parameter servers can't clip gradients that are accumulated over several steps."
                " Leave out `gradient_accumulation_steps`, or the clipping, or train without"
                " `--ps`."
            )
        self._key = f"{self._number}.{self._begun}"
        self._begun += 1
        try:
            answers = self._servers.register(
                self._key, [self._describe_parts(parts) for parts in self._parts]
            )
        except StalledError:
            raise
        except ExchangeError as error:
            raise ConfigurationError(
                f"The parameter servers can't make a {type(self.optimizer).__name__} of their own:"
                f" {error} An optimizer, schedule or constraint of the script's own must live in a"
                " module beside the script, which the servers can import."
            ) from error
        for variable, value in zip(
            self.variables, self._assemble([a[0] for _, a in answers]), strict=True
        ):
            variable.assign(value)

    def _describe_parts(self, parts: Sequence[Part]) -> tuple[Fields, list[Array]]:
        optimizer = self.optimizer
        described = self._keras.saving.serialize_keras_object(optimizer)
        # A server has parts of the gradients: what clips them by norms is done apart, over all
        # servers.
        config = described["config"]
        clip = {name: config.get(name) for name in _CLIPS}
        config.update({name: None for name in (*_CLIPS, "loss_scale_factor") if name in config})
        held = [self.variables[part.variable] for part in parts]
        pieces = [
            tensor_of(v).numpy().reshape(-1)[p.start : p.stop]
            for v, p in zip(held, parts, strict=True)
        ]
        remembered = self._optimizer_state(parts)
        fields = {
            "replaces": f"{self._number}.{self._begun - 2}",
            "keras": self._keras.__name__,
            "optimizer": described,
            "clip": clip,
            "places": len(self.variables),
            "names": list(remembered),
            "variables": [self._facts(part) for part in parts],
        }
        return fields, [pack_arrays(pieces), *remembered.values()]

    def _facts(self, part: Part) -> VariableFacts:
        variable = self.variables[part.variable]
        return {
            "place": part.variable,
            "shape": list(part.shape),
            "dtype": tf.as_dtype(variable.dtype).name,
            "decays": keras_internals.decays(self.optimizer, variable),
            "constraint": (
                self._keras.constraints.serialize(variable.constraint)
                if variable.constraint
                else None
            ),
        }

    def _slots(self, parts: Sequence[Part]) -> list[tuple[str, Variable, Part | None]]:
        """Returns the variables of the optimizer's state that belong to a server.

        Each comes with its name at the server, and the part that it is of; None where it is of no
        variable of the model.
        """
        found, seen = [], collections.Counter[str]()
        here = {part.variable: (i, part) for i, part in enumerate(parts)}
        for slot in self.optimizer.variables:
            kind, path = keras_internals.slot_of(slot, self._paths)
            if path is None:
                found.append((kind, slot, None))
                continue
            # Several, if layers share a name: then in their order.
            owners = [i for i, known in enumerate(self._paths) if known == path]
            owner = owners[seen[f"{path} {kind}"] % len(owners)]
            seen[f"{path} {kind}"] += 1
            if owner in here:
                i, part = here[owner]
                found.append((f"v{i}_{kind}", slot, part))
        return found

    def _optimizer_state(self, parts: Sequence[Part]) -> dict[str, Array]:
        """Returns a server's part of the optimizer's state, by name."""
        if not int(keras_internals.updates_of(self.optimizer)):
            return {}
        values = {}
        for name, slot, part in self._slots(parts):
            value = tensor_of(slot).numpy()
            values[name] = (
                value if part is None or part.whole else value.reshape(-1)[part.start : part.stop]
            )
        return values

    def pull(self) -> None:
        """Takes the weights and the optimizer's state that the servers have now."""
        values: dict[int, tuple[Variable, Array]] = {}
        answers = self._servers.state(self._key)
        for parts, (fields, arrays) in zip(self._parts, answers, strict=True):
            theirs = dict(zip(fields["names"], arrays[1:], strict=True))
            for name, slot, part in self._slots(parts):
                if name in theirs:
                    _, whole = values.setdefault(id(slot), (slot, np.array(tensor_of(slot))))
                    cut = slice(part.start, part.stop) if part and not part.whole else slice(None)
                    whole.reshape(-1)[cut] = theirs[name].reshape(-1)
        for slot, value in values.values():
            slot.assign(value)
        for variable, value in zip(
            self.variables, self._assemble([arrays[0] for _, arrays in answers]), strict=True
        ):
            variable.assign(value)


def _is_rows(gradient: object) -> TypeGuard[tf.IndexedSlices]:
    return isinstance(gradient, tf.IndexedSlices)
