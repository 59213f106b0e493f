"""`--shard-update` on TensorFlow: an optimizer computes the new values of this worker's part of each variable, and the parts are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.comm import fusion, pool, world
from syrtos.comm.communicator import Array
from syrtos.errors import ConfigurationError
from syrtos.keras import keras_internals, saving, sharding, state
from syrtos.keras.patching import Method, Patch
from syrtos.keras.sharding import Sharding
from syrtos.keras.tensorflow import compiled_update, ops
from syrtos.keras.tensorflow.variables import tensor_of


class _Slice:
    """Stands for a variable in an optimizer's update: its value is this worker's part, and what is assigned to it is kept as a tensor."""

    def __init__(self, owner: Any, value: tf.Tensor) -> None:
        setattr(self, sharding.OWNER, owner)
        self.name, self.value = owner.name, value

    @property
    def dtype(self) -> tf.DType:
        return self.value.dtype

    @property
    def shape(self) -> tf.TensorShape:
        return self.value.shape

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.value, dtype=dtype, name=name)

    def assign(self, value: Any) -> None:
        self.value = tf.ensure_shape(value, self.shape)

    def assign_add(self, value: Any) -> None:
        self.assign(self.value + value)

    def assign_sub(self, value: Any) -> None:
        self.assign(self.value - value)

    def scatter_update(self, rows: tf.IndexedSlices) -> None:
        self.assign(tf.tensor_scatter_nd_update(self.value, rows.indices[:, None], rows.values))

    def scatter_add(self, rows: tf.IndexedSlices) -> None:
        self.assign(tf.tensor_scatter_nd_add(self.value, rows.indices[:, None], rows.values))

    def scatter_sub(self, rows: tf.IndexedSlices) -> None:
        self.assign(tf.tensor_scatter_nd_sub(self.value, rows.indices[:, None], rows.values))


def _sharding(original: Method) -> Method:
    def backend_update_step(self: Any, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        found, variables = sharding.of(self), list(trainable_variables)
        if found is None:
            original(self, grads, variables, learning_rate)
            return
        decaying = compiled_update.take_decaying(self)
        pairs = [(_as_cut(found, g, v), v) for g, v in zip(grads, variables, strict=True) if g is not None]
        rows = [pair for pair in pairs if isinstance(pair[0], tf.IndexedSlices)]
        dense = [pair for pair in pairs if not isinstance(pair[0], tf.IndexedSlices)]
        changed = [v for _, v in (*rows, *dense)]
        # XLA compiles for one number of rows; that of `tf.IndexedSlices` is another in each step.
        new = _updated(self, [g for g, _ in rows], learning_rate, [v for _, v in rows], decaying)
        new += _updated_dense(self, [g for g, _ in dense], learning_rate, [v for _, v in dense], decaying)
        for variable, value in zip(changed, _gathered(found, changed, new), strict=True):
            variable.assign(value)

    return backend_update_step


def _updated_dense(
    optimizer: Any, grads: list[tf.Tensor], rate: Any, variables: list[Any], decaying: set[int]
) -> list[tf.Tensor]:
    if not variables or not compiled_update.is_compiled(optimizer, variables):
        return _updated(optimizer, grads, rate, variables, decaying)
    world.current().ledger.say(update="compiled")

    def update(optimizer: Any, grads: list[tf.Tensor], rate: tf.Tensor) -> list[tf.Tensor]:
        return _updated(optimizer, grads, rate, variables, decaying)

    return list(compiled_update.compiled(optimizer, variables, decaying, update)(grads, tf.convert_to_tensor(rate)))


def _updated(
    optimizer: Any, grads: Sequence[Any], rate: Any, variables: Sequence[Any], decaying: set[int]
) -> list[tf.Tensor]:
    """The new values of this worker's parts, flat; weights decay before the update, as in Keras."""
    found = sharding.of(optimizer)
    assert found is not None
    new = []
    with sharding.updating():
        for gradient, variable in zip(grads, variables, strict=True):
            part = _Slice(variable, _cut(found, tensor_of(variable), variable))
            if part.shape.num_elements():
                if id(variable) in decaying and keras_internals.decays(optimizer, state.held([variable])[0]):
                    part.assign_sub(
                        part.value * tf.cast(optimizer.weight_decay, part.dtype) * tf.cast(rate, part.dtype)
                    )
                optimizer.update_step(_cut(found, gradient, variable), part, rate)
            new.append(tf.reshape(part.value, [-1]))
    return new


def _as_cut(found: Sharding, gradient: Any, variable: Any) -> Any:
    """Rows only where the variable is cut by rows, or not at all.

    Raises:
        ConfigurationError: an update of rows of another variable, of which some may be listed twice, is not that of the sum of them.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    part = found.part_of(variable)
    if part.stop > part.start and part.shape[1:] != tuple(variable.shape[1:]):
        raise ConfigurationError(
            f"`--shard-update` cuts `{state.name_of(variable)}` of shape {tuple(variable.shape)} within its rows, and its gradient is some of its rows "
            "(`tf.gather`). Leave out --shard-update."
        )
    return gradient


def _cut(found: Sharding, value: Any, variable: Any) -> Any:
    """This worker's part of a variable's value, or of its gradient."""
    part = found.part_of(variable)
    if not isinstance(value, tf.IndexedSlices):
        return tf.reshape(tf.reshape(value, [-1])[part.start : part.stop], part.shape)
    first = tf.constant(part.first_row(), value.indices.dtype)
    here = tf.logical_and(value.indices >= first, value.indices < first + part.shape[0])
    indices = tf.boolean_mask(value.indices, here) - first
    return tf.IndexedSlices(tf.boolean_mask(value.values, here), indices, tf.constant(part.shape))


def _gathered(found: Sharding, variables: Sequence[Any], parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The new values of whole variables."""
    results: list[Any] = [None] * len(variables)
    limit = int(world.current().options.bucket_mb * 1e6)
    for dtype in dict.fromkeys(part.dtype for part in parts):
        mine = [i for i, part in enumerate(parts) if part.dtype == dtype]
        sizes = [variables[i].shape.num_elements() * dtype.size for i in mine]
        for bucket in fusion.plan(sizes, limit):
            chosen = [mine[k] for k in bucket]
            values = _exchanged(found, [variables[i] for i in chosen], [parts[i] for i in chosen])
            for i, value in zip(chosen, values, strict=True):
                results[i] = tf.reshape(value, variables[i].shape)
    return results


def _exchanged(found: Sharding, variables: list[Any], parts: list[tf.Tensor]) -> list[tf.Tensor]:
    ranges = [found.part_of(variable) for variable in variables]
    sizes = [variable.shape.num_elements() for variable in variables]

    def run(*arrays: Array) -> list[Array]:
        wholes = [
            pool.empty_like(np.broadcast_to(np.zeros((), a.dtype), size)) for a, size in zip(arrays, sizes, strict=True)
        ]
        for whole, part, array in zip(wholes, ranges, arrays, strict=True):
            whole[part.start : part.stop] = array
        found.gather(wholes, variables)
        return wholes

    return ops.exchange(run, parts, [part.dtype for part in parts])


_OPTIMIZER = "keras.src.backend.tensorflow.optimizer:TFOptimizer"

PATCHES = [
    *sharding.PATCHES,
    *saving.PATCHES,
    Patch(_OPTIMIZER, "_var_key", sharding.of_owner, "As in the class that it is derived from."),
    Patch(_OPTIMIZER, "_backend_update_step", _sharding, "What changes variables, after gradients are reduced and clipped."),
]  # fmt: skip
