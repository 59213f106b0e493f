"""This worker's shares of the batches of a `tf.data` pipeline, or of batches given by hand.

A share is given out exactly when a step wants it, never ahead of it. So all workers take equally many, also when an
epoch ends early.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Array, Communicator, share_of
from syrtos.errors import DataError
from syrtos.keras import fitting
from syrtos.keras.patching import Method
from syrtos.keras.tensorflow import reproducible, tf_internals, tf_internals_pipelines

# Global batches between two comparisons of what the workers read.
_COMPARE_EVERY = 64
# The number of the first batch where threads decide which numbers records get, so that only rows are compared.
_LEFT_TO_THREADS = -(1 << 30)
# Bytes of each tensor that are compared.
_COMPARED_BYTES = 1 << 16

# The parallel calls with which `num_parallel_calls=tf.data.AUTOTUNE` begins where there are so many threads
# (`kAutotuneDefaultParallelism`).
_CALLS_AT_FIRST = 16

# Seconds for the maps of a batch, below which each worker maps all records: an iterator of a pipeline that divides
# them takes some 40 ms to make.
_QUICK_MAPS = 2e-3

# Autograph rewrites what a pipeline maps; there is nothing to rewrite in ours.
_as_it_is = tf.autograph.experimental.do_not_convert


class Share(NamedTuple):
    """A worker's part of a batch, as the steps of `fit`, `evaluate` and `predict` take it.

    Attributes:
        samples: the number of this worker's rows, int64 scalar.
        data: the rows. Where ``samples`` is 0, one row of the batch (or of an earlier one) that does not count. It is
            of the script's own data, for layers that refuse an empty batch, zeros or "" (a lookup without unknown
            words).
    """

    samples: tf.Tensor
    data: Any


class Numbered(NamedTuple):
    """A whole batch, out of which a step cuts this worker's `Share` (see `cut`).

    Attributes:
        number: counts the batches of an iterator, int32 scalar: from 0 on, or from `_LEFT_TO_THREADS` on where threads
            decide which numbers records get. `tf.function` does not tell named tuples apart whose parts have equal
            dtypes and shapes: a step that was traced for a `Share` would take an int64 for a number of samples.
        data: all rows.
    """

    number: tf.Tensor
    data: Any


def numbered_batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a data set of `Numbered`, for steps of Keras, which cut their shares themselves.

    Nothing is built or traced for it: an iterator takes the time that it takes in one process, where a pipeline that
    cuts takes 0.1 to 0.2 ms for each operation in its functions.
    """
    first = _LEFT_TO_THREADS if tf_internals_pipelines.is_left_to_threads(dataset) else 0
    parts: list[Any] = [tf.data.Dataset.range(first, tf.int32.max, output_type=tf.int32), _in_order(dataset)]
    both: Any = Numbered(*parts)
    return _without_prefetch(tf.data.Dataset.zip(both))


def cut(batch: Any, comm: Communicator) -> Any:
    """Returns this worker's share of a `Numbered` batch; every few batches the workers compare what they have read.

    Another batch is returned as it is.
    """
    if not isinstance(batch, Numbered):
        return batch
    # On the processor, where a pipeline's batches are: a GPU gets the share alone.
    with tf.device("/cpu:0"), tf.control_dependencies([_compare_numbered(batch, comm)]):
        return _share(tf.nest.map_structure(_same, batch.data), comm)


def numbered_by_hand(batch: Any) -> Numbered:
    """Returns a batch that a script gives to `train_on_batch` and its like, for a step that cuts its share.

    Its number is one of which nothing is compared: the workers' weights are.
    """
    return Numbered(tf.constant(1, tf.int32), tf.nest.map_structure(_as_tensor, batch))


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, tf.Tensor | tf.SparseTensor | tf.RaggedTensor) or not getattr(leaf, "shape", ()):
        return leaf
    return tf.convert_to_tensor(leaf)


def spec_of_share(spec: Any, comm: Communicator) -> Any:
    """Returns the spec of what `cut` makes of a `Numbered` batch, without the number of samples."""
    if not isinstance(spec, Numbered):
        return spec.data if isinstance(spec, Share) else spec

    def of_rows(leaf: Any) -> Any:
        if not isinstance(leaf, tf.TensorSpec) or not leaf.shape.rank:
            return leaf
        rows = (leaf.shape[0] or 0) // comm.size if _is_even(leaf, comm.size) else None
        return tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(of_rows, spec.data)


_steps_cut = contextvars.ContextVar("_steps_cut", default=False)


def are_cut_by_steps() -> bool:
    """Returns whether data sets are made for steps that `cut`."""
    return _steps_cut.get()


@contextlib.contextmanager
def cut_by_steps() -> Iterator[None]:
    """Context manager: data sets are distributed as `numbered_batches` where that is possible."""
    before = _steps_cut.set(True)
    try:
        yield
    finally:
        _steps_cut.reset(before)


def global_batches(dataset: tf.data.Dataset, comm: Communicator) -> tf.data.Dataset:
    """Returns a data set of this worker's contiguous shares of the batches of ``dataset``; a share may have no rows.

    All workers read the same batches. Every few batches they compare a checksum: data that was shuffled with unequal
    seeds would train on some samples twice and on others never. Where threads decide which numbers records get
    (`tf_internals_pipelines.is_left_to_threads`), only the numbers of rows are compared. For steps of Keras
    `tf_internals.counted_pipeline` gives the same as `Share`.
    """

    comparable = not tf_internals_pipelines.is_left_to_threads(dataset)

    @_as_it_is
    def take(index: tf.Tensor, data: Any) -> Share:
        checked = _compare_batches(index, data if comparable else _counts(data), comm)
        with tf.control_dependencies([checked]):
            return _share(data, comm)

    return plain(_without_prefetch(_in_order(dataset).enumerate().map(take)))


def _share(data: Any, comm: Communicator) -> Share:
    """Cuts this worker's share out of a batch.

    Tensors of unequal numbers of rows are each cut by their own number; a worker then has samples where it has rows of
    any tensor. The bounds of all tensors are computed together: an iterator of a pipeline takes 0.2 ms for each
    operation in its functions.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if has_rows(leaf)]
    static = {id(leaf): share_of(leaf.shape[0], comm.rank, comm.size) for leaf in leaves if _is_even(leaf, comm.size)}
    others = [leaf for leaf in leaves if id(leaf) not in static]
    if not others:
        count = max((stop - start for start, stop in static.values()), default=1)
        return Share(tf.constant(count, tf.int64), _cut(data, static))
    # A placeholder hides the totals: TensorFlow would find out this worker's number, and make it part of the share's
    # shape.
    totals = tf.compat.v1.placeholder_with_default(
        tf.stack([tf.cast(count_rows(leaf), tf.int64) for leaf in others]), [len(others)]
    )
    starts, stops = share_of(totals, comm.rank, comm.size)
    count = tf.reduce_max(stops - starts)
    for start, stop in static.values():
        count = tf.maximum(count, stop - start)
    # A share without rows gets the first one of the batch, which does not count.
    empty = tf.logical_and(tf.equal(starts, stops), tf.equal(count, 0))
    starts, stops = tf.where(empty, tf.zeros_like(starts), starts), tf.where(empty, tf.minimum(totals, 1), stops)
    bounds = zip(tf.unstack(starts), tf.unstack(stops), strict=True)
    return Share(count, _cut(data, static | dict(zip(map(id, others), bounds, strict=True))))


def _is_even(leaf: Any, size: int) -> bool:
    """Returns whether all workers' shares have the same number of rows.

    It is static then: models are built from it.
    """
    return bool(leaf.shape.rank and leaf.shape[0] and leaf.shape[0] % size == 0)


def _cut(data: Any, bounds: dict[int, tuple[Any, Any]]) -> Any:
    return tf.nest.map_structure(
        lambda leaf: _slice_rows(leaf, *bounds[id(leaf)]) if id(leaf) in bounds else leaf, data
    )


def plain(shares: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a data set of the rows alone, without their number, for loops of the script's own.

    `tf_internals.counted_pipeline` gives the shares again.
    """

    @_as_it_is
    def strip(share: Share) -> Any:
        # tf.data runs maps without side effects in parallel, ahead of the step. Reading the clock is a side effect.
        with tf.control_dependencies([tf.timestamp()]):
            return tf.nest.map_structure(lambda leaf: _same(_none_if(share.samples, leaf)), share.data)

    return tf_internals.with_counts(_without_prefetch(shares.map(strip)), shares)


def _none_if(count: tf.Tensor, leaf: Any) -> Any:
    """Returns the leaf, without rows where the share has none."""
    if not has_rows(leaf) or (leaf.shape.rank and leaf.shape[0]):  # a static share is never empty
        return leaf
    return first_rows(leaf, tf.where(count > 0, tf.cast(count_rows(leaf), tf.int64), 0))


def global_records(dataset: tf.data.Dataset, comm: Communicator) -> tf.data.Dataset | None:
    """Returns this worker's shares as `global_batches` does, but maps only this worker's own records.

    The pipeline's last steps must be ``map`` and ``batch``. None for pipelines of another form: where maps draw random
    numbers or call Python, a batch is mapped, or records have no fixed shape before they are mapped. None also where
    the maps of a batch take less than what such a pipeline costs, and steps cut the batches.
    """
    found = tf_internals_pipelines.mapped_batches(dataset)
    if found is None or (are_cut_by_steps() and found.seconds < _QUICK_MAPS):
        return None

    comparable = not tf_internals_pipelines.is_left_to_threads(found.raw)

    @_as_it_is
    def take(index: tf.Tensor, raw: Any) -> Any:
        share = _share(raw, comm)
        return (
            index,
            _sum_of(index, raw if comparable else _counts(raw)),
            share.samples,
            _map_records(found.maps, share.data),
        )

    @_as_it_is
    def check_share(index: tf.Tensor, checksum: tf.Tensor, count: tf.Tensor, data: Any) -> Share:
        with tf.control_dependencies([_compared_sums(index, checksum, comm)]):
            return Share(tf.identity(count), tf.nest.map_structure(_same, data))

    groups = _in_order(found.raw).batch(found.batch_size, found.drop_remainder).repeat(found.repeat).enumerate()
    mapped = groups.map(take, tf.data.AUTOTUNE, deterministic=True)
    ahead = mapped if found.prefetch is None else mapped.prefetch(found.prefetch)
    return plain(_without_prefetch(ahead.map(check_share)))


def _map_records(maps: list[Any], mine: Any) -> Any:
    """Maps the records of one share, at least one, in parallel."""
    dataset = tf.data.Dataset.from_tensor_slices(mine)
    for function in maps:
        spread = isinstance(dataset.element_spec, tuple)
        dataset = dataset.map(
            _as_it_is(functools.partial(_call_with_parts, function, spread)), tf.data.AUTOTUNE, deterministic=True
        )
    count = tf.shape(tf.nest.flatten(mine)[0], tf.int64)[0]
    return dataset.batch(count).get_single_element()


def _call_with_parts(function: Any, spread: bool, *parts: Any) -> Any:
    return function(parts if spread else parts[0])


def _rows_like(spec: Any, count: int) -> Any:
    """Returns ``count`` rows of zeros of a spec; unknown dimensions are 1."""
    return tf.zeros([count, *(n or 1 for n in spec.shape[1:])], spec.dtype)


def share_of_tensors(batch: Any, comm: Communicator) -> Share:
    """Returns this worker's share of a batch of a graph's tensors, of which each run of the graph has one."""
    with tf.control_dependencies([_compare_batches(tf.constant(0, tf.int64), batch, comm)]):
        return _share(tf.nest.map_structure(_same, batch), comm)


_policy_counts = False


def heed_policy() -> None:
    """Gives `AutoShardPolicy.OFF` its meaning under `MultiWorkerMirroredStrategy`, from now on.

    Without this call the policy means nothing.
    """
    global _policy_counts
    _policy_counts = True


@contextlib.contextmanager
def policy_ignored() -> Iterator[None]:
    """Ignores `AutoShardPolicy.OFF` within the context: batches are split as one process would see them.

    Predictions then are the same rows on all workers.
    """
    global _policy_counts
    before, _policy_counts = _policy_counts, False
    try:
        yield
    finally:
        _policy_counts = before


_are_whole = False


def are_whole() -> bool:
    """Returns whether batches are given whole to each worker now: see `given_whole`."""
    return _are_whole


@contextlib.contextmanager
def given_whole(whole: bool) -> Iterator[None]:
    """Context manager: with ``whole`` batches of data sets are not split, for functions that know nothing of shares.

    So are those of all that is called inside: `fit` makes the batches of its validation itself.
    """
    global _are_whole
    before, _are_whole = _are_whole, whole or _are_whole
    try:
        yield
    finally:
        _are_whole = before


def is_own_shard(dataset: Any) -> bool:
    """Returns whether the script says that it shards the data itself, by `AutoShardPolicy.OFF`."""
    if not _policy_counts or not isinstance(dataset, tf.data.Dataset):
        return False
    return dataset.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF


def split_batches(dataset: tf.data.Dataset, parts: int) -> tf.data.Dataset:
    """Splits each batch into ``parts`` batches, in order.

    TensorFlow does so where a script shards the data itself: its batches have the global size, and a worker takes a
    part of one in a step.
    """

    @_as_it_is
    def split(*batch: Any) -> tf.data.Dataset:
        data = batch if isinstance(dataset.element_spec, tuple) else batch[0]
        return tf.data.Dataset.range(parts).map(
            _as_it_is(lambda i: tf.nest.map_structure(lambda leaf: rows(leaf, i, parts), data))
        )

    return dataset.flat_map(split)


def worker_batches(dataset: tf.data.Dataset, comm: Communicator) -> tf.data.Dataset:
    """Returns this worker's own batches, and after them batches without rows until every worker has run out."""
    empty = tf.nest.map_structure(_without_rows, dataset.element_spec)
    row = tf.nest.map_structure(lambda spec: _rows_like(spec, 1), dataset.element_spec)
    spread = isinstance(dataset.element_spec, tuple)  # then `map` gives each part as an argument
    own = dataset.map(_as_it_is(lambda *data: (1.0, data if spread else data[0])))
    idle = tf.data.Dataset.from_tensors((0.0, empty)).repeat()

    @_as_it_is
    def take_vote(row: Any, numbered: Any) -> tuple[Any, Share]:
        index, (flag, data) = numbered
        mine = tf.nest.map_structure(lambda leaf, old: tf.cond(flag > 0, lambda: leaf[:1], lambda: old), data, row)
        left, row = _vote(index, flag, mine, comm)
        count = tf.cast(flag > 0, tf.int64) * tf.cast(count_rows(tf.nest.flatten(data)[0]), tf.int64)
        filled = tf.cond(count > 0, lambda: data, lambda: row)
        return row, Share(tf.where(left, count, -1), filled)

    # No map comes after the vote: tf.data would run it ahead of the step, and workers would vote on batches that one of
    # them never takes.
    shares = (
        own.concatenate(idle).enumerate().scan(row, take_vote).take_while(_as_it_is(lambda share: share.samples >= 0))
    )
    return plain(_without_prefetch(shares))


def _vote(index: tf.Tensor, flag: tf.Tensor, row: Any, comm: Communicator) -> tuple[tf.Tensor, Any]:
    """Returns whether any worker has a batch left, and a row for a worker that has none.

    The row is the worker's own of an earlier batch or, before it had any, one of the first worker that has a batch.
    """

    def vote(number: Array, mine: Array, *leaves: Array) -> list[Any]:
        with world.remembering_errors():
            votes = comm.agree("more input?", float(mine))
            if number == 0 and 0 < sum(votes) < len(votes):
                leaves = _broadcast_row(comm, leaves, votes.index(1.0))
        return [np.asarray(sum(votes) > 0), *leaves]

    flat = tf.nest.flatten(row)
    left, *given = tf.numpy_function(vote, [index, flag, *flat], [tf.bool, *(leaf.dtype for leaf in flat)])
    same = [tf.ensure_shape(leaf, [1, *old.shape[1:]]) for leaf, old in zip(given, flat, strict=True)]
    return tf.ensure_shape(left, []), tf.nest.pack_sequence_as(row, same)


def _broadcast_row(comm: Communicator, leaves: tuple[Array, ...], root: int) -> tuple[Array, ...]:
    """Returns rank ``root``'s row, on all workers: some have none."""
    texts = [leaf.dtype == object for leaf in leaves]
    sent = [leaf.tolist() if text else leaf for leaf, text in zip(leaves, texts, strict=True)]
    found = comm.broadcast_object(sent if comm.rank == root else None, root)
    return tuple(np.asarray(leaf, object) if text else leaf for leaf, text in zip(found, texts, strict=True))


def _same(leaf: Any) -> Any:
    return None if leaf is None else tf.identity(leaf)  # an optional input that is left out


def _counts(data: Any) -> list[tf.Tensor]:
    return [count_rows(leaf) for leaf in tf.nest.flatten(data) if has_rows(leaf)]


def _in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the data set with its records in one order, whatever the options of the script say."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _without_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def iterating(original: Method) -> Method:
    """Wraps `tf.data.Dataset.__iter__`: records come in one order, and no thread tunes a pipeline in vain.

    Deleting an iterator waits for the thread that tunes its pipeline. That thread sleeps for up to a minute between two
    tunings (the longer the iterator has lived), and is woken before the cancellation that it looks for is noted
    (`Model::OptimizeLoop` and `CancellationManager` of TensorFlow 2.21). Where workers keep all cores busy, every
    second to third epoch ends with such a pause, and all workers wait for it.
    """

    def iterate(self: Any) -> Any:
        if reproducible.is_read_by_all() and self.options().deterministic is False:
            self = _in_order(self)
        if tf.executing_eagerly() and world.sharing().world.size > 1 and _is_tuned_in_vain(self):
            untuned = tf.data.Options()
            untuned.autotune.enabled = False
            self = self.with_options(untuned)
        return original(self)

    return iterate


def _is_tuned_in_vain(dataset: tf.data.Dataset) -> bool:
    """Returns whether the tuning of a pipeline could change nothing.

    That is so where parallel calls begin with all threads that there are, and TensorFlow will make no other calls
    parallel, which it does only if it tunes.
    """
    options = dataset.options()
    threads = options.threading.private_threadpool_size or len(os.sched_getaffinity(0))
    few = threads <= _CALLS_AT_FIRST and options.autotune.enabled is None
    return few and not tf_internals_pipelines.has_maps_to_parallelize(dataset)


def rows(leaf: Any, part: Any, parts: int) -> Any:
    """Returns one of ``parts`` equal parts of a tensor's rows; a leaf without rows is returned as it is.

    Args:
        leaf: a dense, sparse or ragged tensor.
        part: the number of the part, int64 scalar.
        parts: how many there are.
    """
    if not has_rows(leaf):
        return leaf
    # A placeholder hides the number, as in `_share`.
    total = tf.compat.v1.placeholder_with_default(tf.cast(count_rows(leaf), tf.int64), [])
    return _slice_rows(leaf, *share_of(total, part, parts))


def first_rows(leaf: Any, count: tf.Tensor) -> Any:
    """Returns the first ``count`` rows, an int64 scalar."""
    return _slice_rows(leaf, tf.constant(0, tf.int64), count)


def _slice_rows(leaf: Any, start: Any, stop: Any) -> Any:
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[start:stop]
    rest = leaf.dense_shape[1:]
    part = tf.sparse.slice(leaf, tf.concat([[start], tf.zeros_like(rest)], 0), tf.concat([[stop - start], rest], 0))
    part.set_shape([None, *leaf.shape[1:]])  # slicing forgets it, and layers are built from it
    return part


def has_rows(leaf: Any) -> bool:
    """Returns whether the first dimension of a leaf of a batch counts samples."""
    return isinstance(leaf, tf.Tensor | tf.SparseTensor | tf.RaggedTensor) and leaf.shape.rank != 0


def count_rows(leaf: Any) -> tf.Tensor:
    """Returns the number of rows of a dense, sparse or ragged tensor."""
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return leaf.nrows() if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0]


def _without_rows(spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        raise DataError(
            f"Batches per worker must be dense tensors with a batch dimension, so that a worker can go on without samples. "
            f"Received an element of {spec}."
        )
    return _rows_like(spec, 0)


def _compare_batches(index: tf.Tensor, data: Any, comm: Communicator) -> tf.Tensor:
    """Compares a checksum of the batch over the workers, with every `_COMPARE_EVERY`-th batch. Returns True."""

    def compare(number: Array, *arrays: Array) -> Array:
        return _agree(number, _checksum(*arrays), comm)

    return _for_some(index, compare, [index, *_tensors(data)], True)


def _compare_numbered(batch: Numbered, comm: Communicator) -> tf.Tensor:
    """Compares a checksum as `_compare_batches` does; of the numbers of rows alone where threads decide. Returns True."""
    tensors = _tensors(batch.data)
    leaves = [leaf for leaf in tf.nest.flatten(batch.data) if has_rows(leaf) and not isinstance(leaf, tf.Tensor)]

    def compare(number: Array, *arrays: Array) -> Array:
        dense, counts = arrays[: len(tensors)], arrays[len(tensors) :]
        if number < 0:
            rows = [np.asarray(len(array)) for array in dense if array.ndim]
            return _agree(number - _LEFT_TO_THREADS, _checksum(*rows, *counts), comm)
        return _agree(number, _checksum(*dense), comm)

    return _for_some(batch.number, compare, [batch.number, *tensors, *map(count_rows, leaves)], True)


def _sum_of(index: tf.Tensor, data: Any) -> tf.Tensor:
    """Returns a checksum of every `_COMPARE_EVERY`-th batch, float64; 0 for the others."""
    return _for_some(index, _checksum, _tensors(data), np.float64(0.0))


def _compared_sums(index: tf.Tensor, checksum: tf.Tensor, comm: Communicator) -> tf.Tensor:
    """Compares checksums over the workers as `_compare_batches` does; ``checksum`` is that of `_sum_of`."""
    return _for_some(index, lambda number, mine: _agree(number, mine, comm), [index, checksum], True)


def _for_some(index: tf.Tensor, call: Callable[..., Array], inputs: list[tf.Tensor], otherwise: Any) -> tf.Tensor:
    """Returns the scalar that ``call`` gives, in Python, for every `_COMPARE_EVERY`-th batch.

    For the others it is ``otherwise``, which has the same dtype.
    """

    def rest() -> tf.Tensor:
        return tf.constant(otherwise)

    def some() -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(call, inputs, tf.as_dtype(np.asarray(otherwise).dtype)), [])

    return tf.cond(tf.equal(tf.math.floormod(index, _COMPARE_EVERY), 0), some, rest)


def _tensors(data: Any) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(data) if isinstance(leaf, tf.Tensor)]


def _checksum(*arrays: Array) -> Array:
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(_head_of(array), checksum)
    return np.asarray(float(checksum))


def _head_of(array: Array) -> bytes:
    if array.dtype == object:
        return b"".join(array.reshape(-1)[:_COMPARED_BYTES].tolist())[:_COMPARED_BYTES]
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)[:_COMPARED_BYTES].tobytes()


def _agree(number: Array, mine: Array, comm: Communicator) -> Array:
    with world.remembering_errors():
        fitting.check_same_data(comm.agree("compare input", float(mine)), int(number))
    return np.asarray(True)
