"""The data of an ``input_fn``, as this worker's share of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.keras.split import verdicts
from syrtos.keras.tensorflow import input as pipelines
from syrtos.keras.tensorflow import tf_internals

# What a worker takes: its rows of each batch; whole batches, each of them one worker's, as under a strategy given to
# the Estimator; or everything.
How = Literal["share", "own", "all"]
SHARE, OWN, ALL = get_args(How)


def read(input_fn: Callable[..., Any], mode: str, how: How, known: dict[str, Any]) -> tuple[Any, Any] | pipelines.Share:
    """Returns features and labels, as tensors of the graph that is being built: all, or a worker's share of them.

    Args:
        input_fn: returns a `tf.data.Dataset`, or features or ``(features, labels)``.
        mode: one of `ModeKeys`.
        how: the part that this worker takes.
        known: values of arguments that functions may ask for by name: ``params``, ``config``.
    """
    place = world.current().world
    everyone = tf.distribute.InputContext(place.size, place.rank, place.size)
    context = tf.distribute.InputContext() if how == ALL else everyone
    asked = called_with(input_fn, {"mode": mode, "input_context": context, **known})
    found = input_fn(**asked)
    own_shard = "input_context" in asked
    if isinstance(found, tf.data.Dataset):
        iterator = tf.compat.v1.data.make_initializable_iterator(
            tf_internals.counted_pipeline(_share_dataset(found, how, own_shard))
        )
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        found = iterator.get_next()
    elif place.size > 1 and how == SHARE and not own_shard:
        found = pipelines.share_of_tensors(found, world.current().input_comm)
    if isinstance(found, pipelines.Share):
        return found._replace(data=_pair(found.data))
    return _pair(found)


def is_split(input_fn: Callable[..., Any], how: How) -> bool:
    """Returns whether the workers get parts of the same batches, and not batches of their own or all rows."""
    return how == SHARE and not called_with(input_fn, {"input_context": None}) and verdicts.is_split(world.current())


def _pair(found: Any) -> tuple[Any, Any]:
    if isinstance(found, tuple | list):
        if len(found) != 2:
            raise ValueError(f"`input_fn` should return (features, labels). Received {len(found)} things.")
        return found[0], found[1]
    return found, None


def called_with(function: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    """Returns the ``known`` values that a function asks for by the names of its arguments, and does not have yet."""
    bound = function.keywords if isinstance(function, functools.partial) else {}
    names = inspect.signature(function).parameters
    return {name: value for name, value in known.items() if name in names and name not in bound}


def _share_dataset(dataset: tf.data.Dataset, how: How, own_shard: bool) -> tf.data.Dataset:
    session = world.current()
    place = session.world
    if place.size == 1 or how == ALL:
        return dataset
    if own_shard:
        return pipelines.worker_batches(dataset, session.input_comm)
    if how == OWN or session.options.batch == "per-worker":
        return pipelines.worker_batches(dataset.shard(place.size, place.rank), session.input_comm)
    return pipelines.global_batches(dataset, session.input_comm)


def numpy_input_fn(
    x: Any, y: Any = None, batch_size: int = 128, num_epochs: int | None = 1, shuffle: bool | None = None, **_queue: Any
) -> Callable[[], tf.data.Dataset]:
    """Returns an input function of batches of arrays, as `tf.compat.v1.estimator.inputs.numpy_input_fn` does.

    Options of the queue that the original had are not needed.

    Raises:
        ValueError: ``shuffle`` is neither True nor False.
    """
    if shuffle not in (True, False):
        raise ValueError("shuffle must be provided and explicitly set as boolean (True or False).")

    flat = [np.asarray(array) for array in tf.nest.flatten(x if y is None else (x, y))]

    def take(rows: Any) -> Any:
        """Returns the given rows of the arrays."""
        # arrays stay out of the graph, which is written with every checkpoint
        taken = tf.numpy_function(lambda at: [array[at] for array in flat], [rows], [array.dtype for array in flat])
        shaped = [tf.ensure_shape(t, [None, *a.shape[1:]]) for t, a in zip(tf.nest.flatten(taken), flat, strict=True)]
        return tf.nest.pack_sequence_as(x if y is None else (x, y), shaped)

    def input_fn() -> tf.data.Dataset:
        rows = tf.data.Dataset.range(len(flat[0]))
        rows = rows.shuffle(len(flat[0])) if shuffle else rows
        return rows.repeat(num_epochs).batch(batch_size).map(take)

    return input_fn


def pandas_input_fn(
    x: Any, y: Any = None, batch_size: int = 128, num_epochs: int | None = 1, shuffle: bool | None = None,
    target_column: str = "target", **_queue: Any,
) -> Callable[[], tf.data.Dataset]:  # fmt: skip
    """Returns an input function of a table, as `tf.compat.v1.estimator.inputs.pandas_input_fn` does.

    Features are the columns by name.
    """
    del target_column
    features = {name: x[name].to_numpy() for name in x.columns}
    labels = (
        None
        if y is None
        else {name: y[name].to_numpy() for name in y.columns}
        if hasattr(y, "columns")
        else y.to_numpy()
    )
    return numpy_input_fn(features, labels, batch_size, num_epochs, shuffle)
