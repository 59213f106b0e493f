"""The data of an ``input_fn``, as this worker's share of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeGuard, get_args

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from syrtos.comm import world
from syrtos.keras.split import verdicts
from syrtos.keras.tensorflow import input as pipelines
from syrtos.keras.tensorflow import tf_internals

# What a worker takes: each batch, whose steps are partitioned; batches of its own, as under a
# strategy given to the Estimator; or everything, to be computed alone.
How = Literal["batch", "own", "all"]
BATCH, OWN, ALL = get_args(How)


class Column(Protocol):
    """A column of a table: `pandas.Series`."""

    def to_numpy(self) -> npt.NDArray[np.generic]:
        """Returns the values."""
        ...


class Table(Column, Protocol):
    """Columns by name: all that is used of `pandas.DataFrame`, so pandas need not be installed."""

    columns: Sequence[str]

    def __getitem__(self, name: str, /) -> Column: ...


def read(
    input_fn: Callable[..., object], mode: str, how: How, known: Mapping[str, object]
) -> tuple[object, object] | pipelines.TensorShare:
    """Returns features and labels as tensors of the graph being built: whole, or a worker's own batch.

    Args:
        input_fn: returns a `tf.data.Dataset`, or features or ``(features, labels)``.
        mode: one of `ModeKeys`.
        how: the part that this worker takes.
        known: values of arguments that functions may ask for by name: ``params``, ``config``.
    """
    place = world.current().world
    # A function that asks for the context shards its data by it: of one process where all rows are
    # wanted.
    everyone = tf.distribute.InputContext(place.size, place.rank, place.size)
    context = tf.distribute.InputContext() if how == ALL else everyone
    asked = arguments_for(input_fn, {"mode": mode, "input_context": context, **known})
    found = input_fn(**asked)
    own_shard = "input_context" in asked
    if isinstance(found, tf.data.Dataset):
        dataset = found if is_split(input_fn, how) else _own_batches(found, how, own_shard)
        iterator = tf.compat.v1.data.make_initializable_iterator(
            tf_internals.counted_pipeline(dataset)
        )
        # The scaffold of a session runs what initializes tables, and so iterators too.
        tf.compat.v1.add_to_collection(
            tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer
        )
        found = iterator.get_next()
    if isinstance(found, pipelines.TensorShare):
        return found._replace(data=_pair(found.data))
    return _pair(found)


def is_split(input_fn: Callable[..., object], how: How) -> bool:
    """Returns whether workers get parts of the same batches, not their own batches or all rows."""
    return (
        how == BATCH
        and not arguments_for(input_fn, {"input_context": None})
        and verdicts.is_split(world.current())
    )


def _pair(found: object) -> tuple[object, object]:
    if isinstance(found, tuple | list):
        if len(found) != 2:
            raise ValueError(
                f"`input_fn` should return (features, labels). Received {len(found)} things."
            )
        return found[0], found[1]
    return found, None


def arguments_for(
    function: Callable[..., object], known: Mapping[str, object]
) -> dict[str, object]:
    """Returns the ``known`` values that a function asks for by argument name and does not have."""
    # `inspect` lists what a partial has bound by name among its parameters too.
    bound = function.keywords if isinstance(function, functools.partial) else {}
    names = inspect.signature(function).parameters
    return {name: value for name, value in known.items() if name in names and name not in bound}


def _own_batches(dataset: tf.data.Dataset, how: How, own_shard: bool) -> tf.data.Dataset:
    session = world.current()
    place = session.world
    if place.size == 1 or how == ALL:
        return dataset
    mine = dataset if own_shard else dataset.shard(place.size, place.rank)
    return pipelines.worker_batches(mine, session.input_comm)


def numpy_input_fn(
    x: object, y: object = None, batch_size: int = 128, num_epochs: int | None = 1, shuffle: bool | None = None,
    **_queue: object,
) -> Callable[[], tf.data.Dataset]:  # fmt: skip
    """Returns an input function of batches of arrays.

    The original is `tf.compat.v1.estimator.inputs.numpy_input_fn`. Options of the queue that the
    original had are not needed.

    Raises:
        ValueError: ``shuffle`` is neither True nor False.
    """
    if shuffle not in (True, False):
        raise ValueError("shuffle must be provided and explicitly set as boolean (True or False).")
    flat = [np.asarray(array) for array in tf.nest.flatten(x if y is None else (x, y))]

    def take(rows: tf.Tensor) -> object:
        """Returns the given rows of the arrays."""
        # In Python, so that the arrays stay out of the graph, which is written with every
        # checkpoint.
        taken = tf.numpy_function(
            lambda at: [array[at] for array in flat], [rows], [array.dtype for array in flat]
        )
        shaped = [
            tf.ensure_shape(t, [None, *a.shape[1:]])
            for t, a in zip(tf.nest.flatten(taken), flat, strict=True)
        ]
        return tf.nest.pack_sequence_as(x if y is None else (x, y), shaped)

    def input_fn() -> tf.data.Dataset:
        # Numbers of rows are shuffled, and not the rows: the buffer, which holds all, stays small.
        rows = tf.data.Dataset.range(len(flat[0]))
        rows = rows.shuffle(len(flat[0])) if shuffle else rows
        return rows.repeat(num_epochs).batch(batch_size).map(take)

    return input_fn


def pandas_input_fn(
    x: Table, y: Column | None = None, batch_size: int = 128, num_epochs: int | None = 1,
    shuffle: bool | None = None, target_column: str = "target", **_queue: object,
) -> Callable[[], tf.data.Dataset]:  # fmt: skip
    """Returns an input function of a table, like `tf.compat.v1.estimator.inputs.pandas_input_fn`.

    Features are the columns by name.
    """
    del target_column
    features = {name: x[name].to_numpy() for name in x.columns}
    labels = (
        None
        if y is None
        else {name: y[name].to_numpy() for name in y.columns}
        if _is_table(y)
        else y.to_numpy()
    )
    return numpy_input_fn(features, labels, batch_size, num_epochs, shuffle)


def _is_table(labels: Column) -> TypeGuard[Table]:
    return hasattr(labels, "columns")
