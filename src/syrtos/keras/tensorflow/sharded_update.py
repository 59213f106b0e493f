"""`--shard-update` on TensorFlow: an optimizer updates this worker's part of each variable.

The new values of all workers' parts are gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, cast, overload

import tensorflow as tf

from syrtos.comm import fusion, world
from syrtos.comm.communicator import Array
from syrtos.keras import keras_internals
from syrtos.keras.features import sharding
from syrtos.keras.features.sharding import Sharding
from syrtos.keras.patching import Method, Patch
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import compiled_update, ops
from syrtos.keras.tensorflow.types import Gradient
from syrtos.keras.tensorflow.variables import tensor_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import NamedVariable, Variable
    from syrtos.keras.tensorflow.compiled_update import Keras3Optimizer
    from syrtos.keras.tensorflow.types import Number

    class _Variable(Variable, Protocol):
        @property
        def dtype(self) -> str | tf.DType: ...

        @property
        def shape(self) -> tf.TensorShape: ...

    # Gradients with their variables.
    Pairs = list[tuple[Gradient, _Variable]]


class _TensorSlice(sharding.PartStandIn):
    """A stand-in for a variable in an optimizer's update, with the value of this worker's part.

    Values that are assigned to it are kept as a tensor.
    """

    def __init__(self, owner: NamedVariable, value: tf.Tensor) -> None:
        self.owner = owner
        self.name, self.value = owner.name, value

    @property
    def dtype(self) -> tf.DType:
        return self.value.dtype

    @property
    def shape(self) -> tf.TensorShape:
        return self.value.shape

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.value, dtype=dtype, name=name)

    def assign(self, value: tf.Tensor) -> None:
        self.value = tf.ensure_shape(value, self.shape)

    def assign_add(self, value: tf.Tensor) -> None:
        self.assign(self.value + value)

    def assign_sub(self, value: tf.Tensor) -> None:
        self.assign(self.value - value)

    def scatter_update(self, rows: tf.IndexedSlices) -> None:
        self.assign(tf.tensor_scatter_nd_update(self.value, rows.indices[:, None], rows.values))

    def scatter_add(self, rows: tf.IndexedSlices) -> None:
        self.assign(tf.tensor_scatter_nd_add(self.value, rows.indices[:, None], rows.values))

    def scatter_sub(self, rows: tf.IndexedSlices) -> None:
        self.assign(tf.tensor_scatter_nd_sub(self.value, rows.indices[:, None], rows.values))


def _sharding(original: Method) -> Method:
    def backend_update_step(
        self: Keras3Optimizer,
        grads: Iterable[Gradient],
        trainable_variables: Iterable[_Variable],
        learning_rate: Number,
    ) -> None:
        found, variables = sharding.of(self), list(trainable_variables)
        if found is None:
            original(self, grads, variables, learning_rate)
            return
        decaying = compiled_update.take_decaying(self)
        dense = [g if isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g) for g in grads]
        pairs = list(zip(dense, variables, strict=True))
        is_compiled = compiled_update.is_compiled(self, variables)
        last = [whole for g, v in pairs if found.leaves_one_out(v) for whole in _wholes(g)]
        for bucket in _buckets(pairs):
            # So that the new values of one bucket are there at a time.
            with tf.control_dependencies(last):
                last = _update(found, self, bucket, learning_rate, decaying, is_compiled)

    return backend_update_step


def _wholes(gradient: Gradient) -> list[tf.Tensor]:
    """Returns tensors for which a partitioned program needs the gradient whole, on any worker.

    A worker without a part of the variable would else make no exchange for it, and the others do.
    """
    is_rows = isinstance(gradient, tf.IndexedSlices)
    parts = [gradient.values, gradient.indices] if is_rows else [gradient]
    # its bits are not those of a sum's terms, and need no memory
    return [tf.bitcast(part, _BITS[part.dtype.size]) for part in parts]


def _buckets(pairs: Pairs) -> list[Pairs]:
    """Groups gradients and variables that are updated and gathered together, all of one dtype."""
    # Rows (`tf.IndexedSlices`) are apart from what XLA can compile: it compiles for one number of
    # rows, and theirs is another in each step.
    kinds: dict[tuple[object, bool], Pairs] = {}
    for gradient, variable in pairs:
        kinds.setdefault((variable.dtype, isinstance(gradient, tf.IndexedSlices)), []).append(
            (gradient, variable)
        )
    found: list[Pairs] = []
    for alike in kinds.values():
        sizes = [v.shape.num_elements() * tf.as_dtype(v.dtype).size for _, v in alike]
        found += [[alike[i] for i in bucket] for bucket in fusion.plan_of_run(sizes)]
    return found


def _update(
    found: Sharding,
    optimizer: Keras3Optimizer,
    bucket: Pairs,
    rate: Number,
    decaying: set[int],
    is_compiled: bool,
) -> list[tf.Tensor]:
    """Updates the variables of a bucket, and returns their new values, flat."""
    grads, variables = [g for g, _ in bucket], [v for _, v in bucket]
    if is_compiled and not isinstance(grads[0], tf.IndexedSlices):
        world.current().ledger.say(update="compiled")

        def update(
            optimizer: Keras3Optimizer, grads: list[tf.Tensor], rate: tf.Tensor
        ) -> list[tf.Tensor]:
            return _update_values(found, optimizer, grads, rate, variables, decaying)

        program = compiled_update.compiled_program(optimizer, variables, decaying, update)
        padded = list(program([tf.convert_to_tensor(g) for g in grads], tf.convert_to_tensor(rate)))
    else:
        padded = _update_values(found, optimizer, grads, rate, variables, decaying)
    values = _gather_values(found, variables, padded)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.reshape(value, variable.shape))
    return values


def _update_values(
    found: Sharding,
    optimizer: Keras3Optimizer,
    grads: Sequence[Gradient],
    rate: Number,
    variables: Sequence[_Variable],
    decaying: set[int],
) -> list[tf.Tensor]:
    """Returns the new values of variables, flat, with this worker's parts in them."""
    new = []
    with sharding.updating():
        for gradient, variable in zip(grads, variables, strict=True):
            part = _TensorSlice(variable, _cut(found, tensor_of(variable), variable))
            if part.shape.num_elements():
                # Weights decay before the update, as in Keras.
                if id(variable) in decaying and keras_internals.decays(
                    optimizer, state.held_objects([variable])[0]
                ):
                    part.assign_sub(
                        part.value
                        * tf.cast(cast("float", optimizer.weight_decay), part.dtype)
                        * tf.cast(rate, part.dtype)
                    )
                optimizer.update_step(_cut(found, gradient, variable), part, rate)
            new.append(_pad_part(found, part.value, variable))
    return new


def _pad_part(found: Sharding, value: tf.Tensor, variable: _Variable) -> tf.Tensor:
    """Returns a flat tensor of a variable's size with this worker's part in it, in its own memory.

    The rest of it is zeros.
    """
    part, size = found.part_of(variable), variable.shape.num_elements()
    return tf.pad(tf.reshape(value, [-1]), [[part.start, size - part.stop]])


@overload
def _cut(found: Sharding, value: tf.Tensor, variable: _Variable) -> tf.Tensor: ...
@overload
def _cut(found: Sharding, value: Gradient, variable: _Variable) -> Gradient: ...
def _cut(found: Sharding, value: Gradient, variable: _Variable) -> Gradient:
    """Returns this worker's part of a variable's value, or of its gradient.

    A gradient may be that part already.
    """
    part = found.part_of(variable)
    if not isinstance(value, tf.IndexedSlices):
        if value.shape.num_elements() == part.stop - part.start:
            return tf.reshape(value, part.shape)
        return tf.reshape(tf.reshape(value, [-1])[part.start : part.stop], part.shape)
    if part.stop > part.start and part.shape[1:] == tuple(variable.shape[1:]):
        return _rows_of_part(value.indices, value.values, part.first_row(), part.shape)
    # The variable is cut within its rows: each number of a row is a row of the part.
    width = variable.shape[1:].num_elements()
    numbers = tf.cast(value.indices, tf.int64)[:, None] * width + tf.range(width, dtype=tf.int64)
    return _rows_of_part(
        tf.reshape(numbers, [-1]), tf.reshape(value.values, [-1]), part.start, part.shape
    )


def _rows_of_part(
    indices: tf.Tensor, values: tf.Tensor, start: int, shape: tuple[int, ...]
) -> tf.IndexedSlices:
    """Returns the rows in a part of this shape from row ``start`` on, counted from that row."""
    first = tf.constant(start, indices.dtype)
    here = tf.logical_and(indices >= first, indices < first + shape[0])
    return tf.IndexedSlices(
        tf.boolean_mask(values, here), tf.boolean_mask(indices, here) - first, tf.constant(shape)
    )


def _gather_values(
    found: Sharding, variables: list[_Variable], padded: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Gathers the flat values of variables, of which each worker gives its part.

    The other parts are written into the memory of ``padded``, which are used up.
    """
    bounds = [found.bounds_of(variable) for variable in variables]

    def run(*arrays: Array) -> list[Array]:
        world.current().ledger.updated_since_sum()
        given = [array if array.flags.writeable else array.copy() for array in arrays]
        found.comm.gather_parts(given, bounds)
        return given

    return ops.exchange(run, padded, [tensor.dtype for tensor in padded], ops.telling_of_sum())


_BITS = {2: tf.uint16, 4: tf.uint32, 8: tf.uint64}
_OPTIMIZER = "keras:Optimizer"

PATCHES = [
    *sharding.PATCHES,
    Patch(_OPTIMIZER, "_var_key", sharding.of_owner, "By it an optimizer finds what it keeps for a variable."),
    Patch(_OPTIMIZER, "_backend_update_step", _sharding, "What changes variables, after gradients are reduced and clipped."),
]  # fmt: skip
