"""The shares of a planned data set as a `tf.data` pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from syrtos.comm.communicator import Array
from syrtos.errors import DataError
from syrtos.keras.datasets.planned import Stream, alone, ranks
from syrtos.keras.tensorflow import input as pipelines

# Batches that are ready before a step asks for them.
_READ_AHEAD = 3


def pipeline_of(stream: Stream) -> tf.data.Dataset:
    """Returns a `tf.data.Dataset` of this worker's shares.

    Raises:
        DataError: parsed records are not dense.
    """
    # A worker without rows computes with this record, which does not count.
    one = stream.example()
    specs = tf.nest.map_structure(_spec, one)
    flat = tf.nest.flatten(specs)
    example = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(one)]
    reader = _ChunkReader(stream, flat)

    # A call of Python takes time: each reads several small batches, which the pipeline takes apart.
    def chunks(number: tf.Tensor) -> tf.data.Dataset:
        tensors = [tf.int64, *(spec.dtype for spec in flat)]
        endless = tf.data.Dataset.counter().map(
            lambda count: tf.numpy_function(reader.read, [number], tensors)
        )
        return endless.take_while(lambda splits, *leaves: tf.size(splits) > 1).prefetch(1)

    def batches(splits: tf.Tensor, *leaves: tf.Tensor) -> tf.data.Dataset:
        splits = tf.ensure_shape(splits, [None])
        shaped = [
            tf.ensure_shape(leaf, spec.shape) for leaf, spec in zip(leaves, flat, strict=True)
        ]

        def batch(number: tf.Tensor) -> pipelines.TensorShare:
            first, last = splits[number], splits[number + 1]
            empty = tf.equal(first, last)
            rows = [
                tf.cond(empty, lambda one=one: one, lambda leaf=leaf: leaf[first:last])
                for leaf, one in zip(shaped, example, strict=True)
            ]
            return pipelines.TensorShare(last - first, tf.nest.pack_sequence_as(specs, rows))

        return tf.data.Dataset.range(tf.size(splits, tf.int64) - 1).map(batch)

    iterators = tf.data.Dataset.from_tensors(0).map(
        lambda zero: tf.numpy_function(reader.start, [], tf.int64)
    )
    shares = iterators.flat_map(chunks).flat_map(batches).prefetch(_READ_AHEAD)
    if ranks()[1] > 1:
        return pipelines.plain(shares)
    # Nobody waits for a worker that is alone: it leaves out batches without rows.
    return (shares.filter(lambda share: share.samples > 0) if alone() else shares).map(
        lambda share: share.data
    )


class _ChunkReader:
    """The chunks of a stream that iterators of the pipeline read, each its own."""

    def __init__(self, stream: Stream, specs: Sequence[tf.TensorSpec]) -> None:
        self._stream, self._specs = stream, specs
        self._types = [spec.dtype.as_numpy_dtype for spec in specs]
        self._started: dict[int, Iterator[list[Array]]] = {}

    def start(self) -> np.int64:
        """Begins to read, and returns the number of the reading."""
        number = len(self._started)
        self._started[number] = self._stream.chunks(self._types, tf.nest.flatten)
        return np.int64(number)

    def read(self, number: Array) -> list[Array]:
        """Returns the next chunk: its splits and its leaves; a chunk without batches at the end."""
        nothing = [
            np.zeros(1, np.int64),
            *(
                np.zeros([n or 0 for n in spec.shape], spec.dtype.as_numpy_dtype)
                for spec in self._specs
            ),
        ]
        return next(self._started[int(number)], nothing)


def _spec(leaf: object) -> tf.TensorSpec:
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
