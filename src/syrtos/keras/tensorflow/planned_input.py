"""The shares of a planned data set as a `tf.data` pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.errors import DataError
from syrtos.keras.datasets.planned import Stream, alone, ranks
from syrtos.keras.tensorflow import input as pipelines

# Batches that are ready before a step asks for them.
_READ_AHEAD = 3


def pipeline_of(stream: Stream) -> Any:
    """Returns a `tf.data.Dataset` of this worker's shares.

    A call of Python takes time: each reads several small batches, which the pipeline takes apart.

    Raises:
        DataError: parsed records are not dense.
    """
    # A worker without rows computes with this record, which does not count.
    one = stream.example()
    specs = tf.nest.map_structure(_spec, one)
    flat = tf.nest.flatten(specs)
    example = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(one)]
    types = [spec.dtype.as_numpy_dtype for spec in flat]
    started: dict[int, Iterator[list[Any]]] = {}

    def start() -> np.int64:
        number = len(started)
        started[number] = stream.chunks(types, tf.nest.flatten)
        return np.int64(number)

    def chunk(number: Any) -> list[Any]:
        nothing = [
            np.zeros(1, np.int64),
            *(np.zeros([n or 0 for n in spec.shape], spec.dtype.as_numpy_dtype) for spec in flat),
        ]
        return next(started[int(number)], nothing)

    def chunks(number: tf.Tensor) -> Any:
        tensors = [tf.int64, *(spec.dtype for spec in flat)]
        endless = tf.data.Dataset.counter().map(lambda count: tf.numpy_function(chunk, [number], tensors))
        return endless.take_while(lambda splits, *leaves: tf.size(splits) > 1).prefetch(1)

    def batches(splits: tf.Tensor, *leaves: tf.Tensor) -> Any:
        splits = tf.ensure_shape(splits, [None])
        shaped = [tf.ensure_shape(leaf, spec.shape) for leaf, spec in zip(leaves, flat, strict=True)]

        def batch(number: tf.Tensor) -> pipelines.Share:
            first, last = splits[number], splits[number + 1]
            empty = tf.equal(first, last)
            rows = [
                tf.cond(empty, lambda one=one: one, lambda leaf=leaf: leaf[first:last])
                for leaf, one in zip(shaped, example, strict=True)
            ]
            return pipelines.Share(last - first, tf.nest.pack_sequence_as(specs, rows))

        return tf.data.Dataset.range(tf.size(splits, tf.int64) - 1).map(batch)

    iterators = tf.data.Dataset.from_tensors(0).map(lambda zero: tf.numpy_function(start, [], tf.int64))
    shares = iterators.flat_map(chunks).flat_map(batches).prefetch(_READ_AHEAD)
    if ranks()[1] > 1:
        return pipelines.plain(shares)
    return (shares.filter(lambda share: share.samples > 0) if alone() else shares).map(lambda share: share.data)


def _spec(leaf: Any) -> Any:
    """Returns the specification of any number of rows like those of ``leaf``.

    Raises:
        DataError: ``leaf`` is no dense tensor or array.
    """
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSU":
        return tf.TensorSpec([None, *leaf.shape[1:]], tf.string)
    spec = tf.type_spec_from_value(leaf)
    if not isinstance(spec, tf.TensorSpec):
        raise DataError(
            f"Parsed records must be dense tensors or arrays. Received {spec}. "
            "Use FixedLenFeature, or tf.sparse.to_dense in `parse_fn`."
        )
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
