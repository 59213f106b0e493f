"""From a `tf.data` pipeline to this worker's share of each batch.

Nothing here prefetches: batches are drawn exactly when a step wants them, so all workers draw equally many, also when an
epoch ends early.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Array, Communicator, share_of
from syrtos.errors import DataError
from syrtos.keras import private

# Global batches between two comparisons of what the workers read.
_COMPARE_EVERY = 64
# Bytes of each tensor that are compared.
_COMPARED_BYTES = 1 << 16

# Autograph rewrites what a pipeline maps; there is nothing to rewrite in ours.
_as_it_is = tf.autograph.experimental.do_not_convert


def global_batches(dataset: tf.data.Dataset, comm: Communicator) -> tf.data.Dataset:
    """This worker's contiguous share of each batch of ``dataset``; possibly no rows.

    All workers read the same batches. Every few batches they compare a checksum: data that was shuffled with unequal seeds
    would train on some samples twice and on others never.
    """

    @_as_it_is
    def take(index: tf.Tensor, data: Any) -> Any:
        checked = _compared(index, data, comm)
        with tf.control_dependencies([checked]):
            return tf.nest.map_structure(lambda leaf: rows(leaf, comm.rank, comm.size), data)

    return _unhurried(dataset.enumerate().map(take))


def global_records(dataset: tf.data.Dataset, comm: Communicator) -> tf.data.Dataset | None:
    """The same for a pipeline whose last steps are ``map`` and ``batch``, of which each worker maps only its own records.

    None for pipelines of another form: where maps draw random numbers or call Python, a batch is mapped, or records have no fixed shape
    before they are mapped.
    """
    found = private.mapped_batches(dataset)
    if found is None:
        return None
    spread = isinstance(found.raw.element_spec, tuple)

    @_as_it_is
    def take(index: tf.Tensor, *group: Any) -> Any:
        raw = group if spread else group[0]
        mine = tf.nest.map_structure(lambda leaf: rows(leaf, comm.rank, comm.size), raw)
        return index, _sum_of(index, raw), _mapped(found.maps, mine)

    @_as_it_is
    def checked(index: tf.Tensor, checksum: tf.Tensor, data: Any) -> Any:
        with tf.control_dependencies([_compared_sums(index, checksum, comm)]):
            return tf.nest.map_structure(_same, data)

    groups = found.raw.batch(found.batch_size, found.drop_remainder).repeat(found.repeat).enumerate()
    flat = groups.map(_as_it_is(lambda index, group: (index, *(group if spread else (group,)))))
    mapped = flat.map(take, tf.data.AUTOTUNE, deterministic=True)
    ahead = mapped if found.prefetch is None else mapped.prefetch(found.prefetch)
    return _unhurried(ahead.map(checked))


def _mapped(maps: list[Any], mine: Any) -> Any:
    """The records of one batch, mapped in parallel; possibly none."""
    dataset = tf.data.Dataset.from_tensor_slices(mine)
    for function in maps:
        spread = isinstance(dataset.element_spec, tuple)
        dataset = dataset.map(
            _as_it_is(functools.partial(_called, function, spread)), tf.data.AUTOTUNE, deterministic=True
        )
    count = tf.shape(tf.nest.flatten(mine)[0], tf.int64)[0]
    batch = dataset.batch(tf.maximum(count, 1))
    empty = tf.data.Dataset.from_tensors(tf.nest.map_structure(_nothing_like, batch.element_spec))
    return batch.concatenate(empty).take(1).get_single_element()


def _called(function: Any, spread: bool, *parts: Any) -> Any:
    return function(parts if spread else parts[0])


def _nothing_like(spec: Any) -> Any:
    return tf.zeros([0, *(n or 1 for n in spec.shape[1:])], spec.dtype)


def share_of_tensors(batch: Any, comm: Communicator) -> Any:
    """The same for tensors of a graph, one batch in each run of it."""
    with tf.control_dependencies([_compared(tf.constant(0, tf.int64), batch, comm)]):
        return tf.nest.map_structure(lambda leaf: rows(tf.identity(leaf), comm.rank, comm.size), batch)


_policy_counts = False


def heed_policy() -> None:
    """From now on `AutoShardPolicy.OFF` means what it does under `MultiWorkerMirroredStrategy`; elsewhere it means nothing."""
    global _policy_counts
    _policy_counts = True


@contextlib.contextmanager
def policy_ignored() -> Iterator[None]:
    """Inside, batches are shared out as one process would see them: predictions are the same rows on all workers."""
    global _policy_counts
    before, _policy_counts = _policy_counts, False
    try:
        yield
    finally:
        _policy_counts = before


def is_own_shard(dataset: Any) -> bool:
    """Whether the script says that it shares out the data itself: `AutoShardPolicy.OFF`."""
    if not _policy_counts or not isinstance(dataset, tf.data.Dataset):
        return False
    return dataset.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF


def split_batches(dataset: tf.data.Dataset, parts: int) -> tf.data.Dataset:
    """Each batch as ``parts`` batches in order, as TensorFlow does where a script shares out the data itself: its batches have the
    global size, and a worker takes a part of one in a step."""

    @_as_it_is
    def split(*batch: Any) -> tf.data.Dataset:
        data = batch if isinstance(dataset.element_spec, tuple) else batch[0]
        return tf.data.Dataset.range(parts).map(
            _as_it_is(lambda i: tf.nest.map_structure(lambda leaf: rows(leaf, i, parts), data))
        )

    return dataset.flat_map(split)


def worker_batches(dataset: tf.data.Dataset, comm: Communicator) -> tf.data.Dataset:
    """This worker's own batches, and after them batches without rows until every worker has run out."""

    @_as_it_is
    def anyone_left(*element: Any) -> Any:
        def vote(mine: Array) -> Array:
            with world.remembering_errors():
                return np.asarray(sum(comm.agree("more input?", float(mine))) > 0)

        left = tf.numpy_function(vote, [element[0]], tf.bool)
        return tf.ensure_shape(left, [])

    @_as_it_is
    def without_flag(_flag: tf.Tensor, data: Any) -> Any:
        # tf.data runs maps without side effects in parallel, ahead of the step: workers would vote on batches that one of them
        # never takes. Reading the clock is a side effect.
        with tf.control_dependencies([tf.timestamp()]):
            return tf.nest.map_structure(_same, data)

    empty = tf.nest.map_structure(_without_rows, dataset.element_spec)
    spread = isinstance(dataset.element_spec, tuple)  # then `map` gives each part as an argument
    own = dataset.map(_as_it_is(lambda *data: (1.0, data if spread else data[0])))
    idle = tf.data.Dataset.from_tensors((0.0, empty)).repeat()
    return _unhurried(own.concatenate(idle).take_while(anyone_left).map(without_flag))


def _same(leaf: Any) -> Any:
    return tf.identity(leaf)


def _unhurried(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def rows(leaf: Any, rank: int, size: int) -> Any:
    """The share of a tensor's rows that is ``rank``'s; what has no rows is passed on."""
    if isinstance(leaf, tf.SparseTensor):
        start, stop = share_of(leaf.dense_shape[0], rank, size)
        begin = tf.concat([[start], tf.zeros_like(leaf.dense_shape[1:])], axis=0)
        count = tf.concat([[stop - start], leaf.dense_shape[1:]], axis=0)
        return tf.sparse.slice(leaf, begin, count)
    if isinstance(leaf, tf.RaggedTensor):
        start, stop = share_of(leaf.nrows(), rank, size)
        return leaf[start:stop]
    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
        return leaf
    start, stop = share_of((leaf.shape.rank and leaf.shape[0]) or tf.shape(leaf, tf.int64)[0], rank, size)
    return leaf[start:stop]


def _without_rows(spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        raise DataError(
            f"Batches per worker must be dense tensors with a batch dimension, so that a worker can go on without samples. "
            f"Received an element of {spec}."
        )
    return _nothing_like(spec)


def _compared(index: tf.Tensor, data: Any, comm: Communicator) -> tf.Operation | tf.Tensor:
    return _compared_sums(index, _sum_of(index, data), comm)


def _sum_of(index: tf.Tensor, data: Any) -> tf.Tensor:
    """A checksum of every so many batches, float64; 0 of the others."""
    tensors = [leaf for leaf in tf.nest.flatten(data) if isinstance(leaf, tf.Tensor)]

    def add_up(*arrays: Array) -> Array:
        checksum = 0
        for array in arrays:
            checksum = zlib.crc32(_head_of(array), checksum)
        return np.asarray(float(checksum))

    def run() -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(add_up, tensors, tf.float64), [])

    return tf.cond(_is_compared(index), run, lambda: tf.constant(0.0, tf.float64))


def _head_of(array: Array) -> bytes:
    if array.dtype == object:
        return b"".join(array.reshape(-1)[:_COMPARED_BYTES].tolist())[:_COMPARED_BYTES]
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)[:_COMPARED_BYTES].tobytes()


def _compared_sums(index: tf.Tensor, checksum: tf.Tensor, comm: Communicator) -> tf.Tensor:
    def compare(batch: Array, mine: Array) -> Array:
        with world.remembering_errors():
            _demand_equal(comm.agree("compare input", float(mine)), int(batch))
        return np.asarray(True)

    def run() -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(compare, [index, checksum], tf.bool), [])

    return tf.cond(_is_compared(index), run, lambda: tf.constant(True))


def _is_compared(index: tf.Tensor) -> tf.Tensor:
    return tf.equal(tf.math.floormod(index, _COMPARE_EVERY), 0)


def _demand_equal(checksums: list[float], batch: int) -> None:
    if len(set(checksums)) == 1:
        return
    groups = {c: [rank for rank, other in enumerate(checksums) if other == c] for c in checksums}
    raise DataError(
        f"Workers read different data in batch {batch}: ranks {' / '.join(map(str, groups.values()))} disagree. With global "
        "batches every worker must read the same batches in the same order. Usually the script shuffles with a generator "
        "of its own without a seed (`numpy.random.default_rng()`): give it one. If the script shards its data by "
        "rank itself, run it with `--batch per-worker`."
    )
