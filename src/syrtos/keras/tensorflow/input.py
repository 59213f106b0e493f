"""This worker's shares of the batches of a `tf.data` pipeline, or of batches given by hand.

A share is given out exactly when a step wants it, never ahead of it. So all workers take equally
many, also when an epoch ends early.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Array, Communicator, share_of
from syrtos.errors import DataError
from syrtos.keras import fitting
from syrtos.keras.datasets.checksums import checksum_of
from syrtos.keras.tensorflow import (
    reproducible,
    tf_internals,
    tf_internals_iterators,
    tf_internals_pipelines,
)
from syrtos.keras.tensorflow.input_comparison import (
    LEFT_TO_THREADS,
    compare_batches,
    compare_numbered,
    compare_sums,
    sum_of,
)
from syrtos.keras.tensorflow.input_policy import are_cut_by_steps
from syrtos.keras.tensorflow.rows import count_rows, first_rows, has_rows, part_of_rows, slice_rows

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.rows import Index
    from syrtos.keras.tensorflow.types import BatchLeaf, Tree

# The parallel calls with which `num_parallel_calls=tf.data.AUTOTUNE` begins where there are so many
# threads (`kAutotuneDefaultParallelism`).
_CALLS_AT_FIRST = 16

# Seconds for the maps of a batch, below which each worker maps all records: an iterator of a
# pipeline that divides them takes some 40 ms to make.
_QUICK_MAPS = 2e-3

# Autograph rewrites what a pipeline maps; there is nothing to rewrite in ours.
_as_it_is = tf.autograph.experimental.do_not_convert

Leaf = TypeVar("Leaf")
Result = TypeVar("Result")

# Of this number nothing is compared, as a model may have computed the batch, on unlike processors.
# The workers' weights are compared.
_BY_HAND = 3


class TensorShare(NamedTuple):
    """A worker's part of a batch, as the steps of `fit`, `evaluate` and `predict` take it.

    Attributes:
        samples: the number of this worker's rows, int64 scalar.
        data: the rows. Where ``samples`` is 0, one row of the batch (or of an earlier one) that
            does not count. It is of the script's own data, for layers that refuse an empty batch,
            zeros or "" (a lookup without unknown words).
    """

    samples: tf.Tensor
    # In any structure of the script's own.
    data: Any


class Numbered(NamedTuple):
    """A whole batch, out of which a step cuts this worker's `TensorShare` (see `cut`).

    Attributes:
        number: counts the batches of an iterator, int32 scalar: from 0 on, or from
            `LEFT_TO_THREADS` on where threads decide which numbers records get.
        data: all rows.
    """

    # Not int64: `tf.function` does not tell named tuples apart whose parts have equal dtypes and
    # shapes, and a step that was traced for a `TensorShare` would take the number of the batch for one of
    # samples.
    number: tf.Tensor
    data: Any


def numbered_batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a data set of `Numbered`, for steps of Keras, which cut their shares themselves."""
    # Nothing is built or traced for it: an iterator takes the time that it takes in one process,
    # where a pipeline that cuts takes 0.1 to 0.2 ms for each operation in its functions.
    first = LEFT_TO_THREADS if tf_internals_pipelines.is_left_to_threads(dataset) else 0
    numbers = tf.data.Dataset.range(first, tf.int32.max, output_type=tf.int32)
    return _numbered_by(numbers, _in_order(dataset))


def dataset_by_hand(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a data set of the one batch of another, as `numbered_by_hand` numbers it."""
    return _numbered_by(tf.data.Dataset.from_tensors(tf.constant(_BY_HAND, tf.int32)), dataset)


def _numbered_by(numbers: tf.data.Dataset, dataset: tf.data.Dataset) -> tf.data.Dataset:
    # `zip` takes a structure of data sets, and gives one of their elements.
    parts: list[Any] = [numbers, dataset]
    both: Any = Numbered(*parts)
    return _without_prefetch(tf.data.Dataset.zip(both))


def cut(batch: object, comm: Communicator) -> Any:
    """Returns this worker's share of a `Numbered` batch.

    Every few batches the workers compare what they have read. A batch of another type is returned
    as it is.
    """
    if not isinstance(batch, Numbered):
        return batch
    # On the processor, where a pipeline's batches are: a GPU gets the share alone.
    with (
        tf.device("/cpu:0"),
        tf.control_dependencies([compare_numbered(batch.number, batch.data, comm)]),
    ):
        return _share(tf.nest.map_structure(_same, batch.data), comm)


def numbered_by_hand(batch: object) -> Numbered:
    """Returns a batch given to `train_on_batch` and its like, for a step that cuts its share."""
    return Numbered(tf.constant(_BY_HAND, tf.int32), tf.nest.map_structure(_as_tensor, batch))


# A script may give any object by hand.
def _as_tensor(leaf: Any) -> object:
    if isinstance(leaf, tf.Tensor | tf.SparseTensor | tf.RaggedTensor) or not getattr(
        leaf, "shape", ()
    ):
        return leaf
    return tf.convert_to_tensor(leaf)


def spec_of_share(spec: object, comm: Communicator) -> Any:
    """Returns the spec of what `cut` makes of a `Numbered` batch, without the number of samples."""
    if not isinstance(spec, Numbered):
        return spec.data if isinstance(spec, TensorShare) else spec

    def of_rows(leaf: tf.TypeSpec) -> tf.TypeSpec:
        if not isinstance(leaf, tf.TensorSpec) or not leaf.shape.rank:
            return leaf
        rows = (leaf.shape[0] or 0) // comm.size if _is_even(leaf, comm.size) else None
        return tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(of_rows, spec.data)


def global_batches(dataset: tf.data.Dataset, comm: Communicator) -> tf.data.Dataset:
    """Returns a data set of this worker's contiguous shares of batches; a share may have no rows.

    All workers read the same batches, and compare a checksum every few batches. For steps of Keras
    `tf_internals.counted_pipeline` gives the same as `TensorShare`.
    """
    # Data that was shuffled with unequal seeds would train on some samples twice and on others
    # never. Where threads decide which numbers records get, only the numbers of rows can be
    # compared.
    comparable = not tf_internals_pipelines.is_left_to_threads(dataset)

    @_as_it_is
    def take(index: tf.Tensor, data: object) -> TensorShare:
        checked = compare_batches(index, data if comparable else _counts(data), comm)
        with tf.control_dependencies([checked]):
            return _share(data, comm)

    return plain(_without_prefetch(_in_order(dataset).enumerate().map(take)))


def _share(data: object, comm: Communicator) -> TensorShare:
    """Cuts this worker's share out of a batch.

    Tensors of unequal numbers of rows are each cut by their own number; a worker then has samples
    where it has rows of any tensor.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if has_rows(leaf)]
    static = {
        id(leaf): share_of(leaf.shape[0], comm.rank, comm.size)
        for leaf in leaves
        if _is_even(leaf, comm.size)
    }
    others = [leaf for leaf in leaves if id(leaf) not in static]
    if not others:
        count = max((stop - start for start, stop in static.values()), default=1)
        return TensorShare(tf.constant(count, tf.int64), _cut(data, static))
    # The bounds of all tensors are computed together: an iterator of a pipeline takes 0.2 ms for
    # each operation in its functions. A placeholder hides the totals: TensorFlow would find out
    # this worker's number, and make it part of the share's shape.
    totals = tf.compat.v1.placeholder_with_default(
        tf.stack([tf.cast(count_rows(leaf), tf.int64) for leaf in others]), [len(others)]
    )
    starts, stops = share_of(totals, comm.rank, comm.size)
    count = tf.reduce_max(stops - starts)
    for start, stop in static.values():
        count = tf.maximum(count, stop - start)
    # A share without rows gets the first one of the batch, which does not count.
    empty = tf.logical_and(tf.equal(starts, stops), tf.equal(count, 0))
    starts, stops = (
        tf.where(empty, tf.zeros_like(starts), starts),
        tf.where(empty, tf.minimum(totals, 1), stops),
    )
    bounds = zip(tf.unstack(starts), tf.unstack(stops), strict=True)
    return TensorShare(count, _cut(data, static | dict(zip(map(id, others), bounds, strict=True))))


def _is_even(leaf: BatchLeaf | tf.TensorSpec, size: int) -> bool:
    """Returns whether all workers' shares have the same number of rows."""
    # It is static then: models are built from it.
    count = leaf.shape[0] if leaf.shape.rank else None
    return bool(count and count % size == 0)


def _cut(data: Tree, bounds: dict[int, tuple[Index, Index]]) -> Tree:
    return tf.nest.map_structure(
        lambda leaf: slice_rows(leaf, *bounds[id(leaf)]) if id(leaf) in bounds else leaf, data
    )


def plain(shares: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a data set of the rows alone, without their number, for loops of the script's own.

    `tf_internals.counted_pipeline` gives the shares again.
    """

    @_as_it_is
    def strip(share: TensorShare) -> object:
        # tf.data runs maps without side effects in parallel, ahead of the step. Reading the clock
        # is a side effect.
        with tf.control_dependencies([tf_internals_iterators.timestamp()]):
            return tf.nest.map_structure(
                lambda leaf: _same(_none_if(share.samples, leaf)), share.data
            )

    return tf_internals.with_counts(_without_prefetch(shares.map(strip)), shares)


def _none_if(count: tf.Tensor, leaf: Leaf) -> Leaf:
    """Returns the leaf, without rows where the share has none."""
    # A share of a static number of rows is never empty.
    if not has_rows(leaf) or (leaf.shape.rank and leaf.shape[0]):
        return leaf
    return first_rows(leaf, tf.where(count > 0, tf.cast(count_rows(leaf), tf.int64), 0))


def global_records(dataset: tf.data.Dataset, comm: Communicator) -> tf.data.Dataset | None:
    """Returns this worker's shares like `global_batches`, but maps only this worker's own records.

    The pipeline's last steps must be ``map`` and ``batch``. None for pipelines of another form:
    where maps draw random numbers or call Python, a batch is mapped, or records have no fixed shape
    before they are mapped. None also where the maps of a batch take less than what such a pipeline
    costs, and steps cut the batches.
    """
    found = tf_internals_pipelines.mapped_batches(dataset)
    if found is None or (are_cut_by_steps() and found.seconds < _QUICK_MAPS):
        return None

    comparable = not tf_internals_pipelines.is_left_to_threads(found.raw)

    @_as_it_is
    def take(index: tf.Tensor, raw: object) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, object]:
        share = _share(raw, comm)
        checksum = sum_of(index, raw if comparable else _counts(raw))
        return index, checksum, share.samples, _map_records(found.maps, share.data)

    # The workers compare the checksums in a map of its own: the one before runs ahead of the step,
    # in many threads, where workers would exchange in any order.
    @_as_it_is
    def check_share(
        index: tf.Tensor, checksum: tf.Tensor, count: tf.Tensor, data: object
    ) -> TensorShare:
        with tf.control_dependencies([compare_sums(index, checksum, comm)]):
            return TensorShare(tf.identity(count), tf.nest.map_structure(_same, data))

    groups = (
        _in_order(found.raw)
        .batch(found.batch_size, found.drop_remainder)
        .repeat(found.repeat)
        .enumerate()
    )
    mapped = groups.map(take, tf.data.AUTOTUNE, deterministic=True)
    ahead = mapped if found.prefetch is None else mapped.prefetch(found.prefetch)
    return plain(_without_prefetch(ahead.map(check_share)))


def _map_records(maps: list[Callable[[object], object]], mine: object) -> object:
    """Maps the records of one share, at least one, in parallel."""
    tensors: Any = mine  # of any structure, where the stub wants a flat one
    dataset = tf.data.Dataset.from_tensor_slices(tensors)
    for function in maps:
        spread = isinstance(dataset.element_spec, tuple)
        dataset = dataset.map(
            _as_it_is(functools.partial(_call_with_parts, function, spread)),
            tf.data.AUTOTUNE,
            deterministic=True,
        )
    count = tf.shape(tf.nest.flatten(mine)[0], tf.int64)[0]
    return dataset.batch(count).get_single_element()


def _call_with_parts(function: Callable[[object], object], spread: bool, *parts: object) -> object:
    return function(parts if spread else parts[0])


def _rows_like(spec: tf.TensorSpec, count: int) -> tf.Tensor:
    """Returns ``count`` rows of zeros of a spec; unknown dimensions are 1."""
    return tf.zeros([count, *(n or 1 for n in spec.shape[1:])], spec.dtype)


def split_batches(dataset: tf.data.Dataset, parts: int) -> tf.data.Dataset:
    """Splits each batch into ``parts`` batches, in order."""
    # TensorFlow does so where a script shards the data itself: its batches have the global size,
    # and a worker takes a part of one in a step.

    @_as_it_is
    def split(*batch: object) -> tf.data.Dataset:
        data = batch if isinstance(dataset.element_spec, tuple) else batch[0]
        return tf.data.Dataset.range(parts).map(
            _as_it_is(
                lambda i: tf.nest.map_structure(lambda leaf: part_of_rows(leaf, i, parts), data)
            )
        )

    return dataset.flat_map(split)


def worker_batches(dataset: tf.data.Dataset, comm: Communicator) -> tf.data.Dataset:
    """Returns this worker's own batches, then ones without rows until all workers have run out."""
    empty = tf.nest.map_structure(_without_rows, dataset.element_spec)
    row = tf.nest.map_structure(lambda spec: _rows_like(spec, 1), dataset.element_spec)
    spread = isinstance(dataset.element_spec, tuple)  # then `map` gives each part as an argument
    own = dataset.map(_as_it_is(lambda *data: (1.0, data if spread else data[0])))
    idle = tf.data.Dataset.from_tensors((0.0, empty)).repeat()

    @_as_it_is
    def take_vote(row: object, numbered: tuple[Any, Any]) -> tuple[object, TensorShare]:
        index, (flag, data) = numbered
        mine = tf.nest.map_structure(
            lambda leaf, old: tf.cond(flag > 0, lambda: leaf[:1], lambda: old), data, row
        )
        left, row = _vote(index, flag, mine, comm)
        count = tf.cast(flag > 0, tf.int64) * tf.cast(
            count_rows(tf.nest.flatten(data)[0]), tf.int64
        )
        filled = tf.cond(count > 0, lambda: data, lambda: row)
        return row, TensorShare(tf.where(left, count, -1), filled)

    # No map comes after the vote: tf.data would run it ahead of the step, and workers would vote on
    # batches that one of them never takes.
    shares = (
        own.concatenate(idle)
        .enumerate()
        .scan(row, take_vote)
        .take_while(_as_it_is(lambda share: share.samples >= 0))
    )
    return plain(_without_prefetch(shares))


def _vote(
    index: tf.Tensor, flag: tf.Tensor, row: Tree, comm: Communicator
) -> tuple[tf.Tensor, Tree]:
    """Returns whether any worker has a batch left, and a row for a worker that has none.

    The row is the worker's own of an earlier batch or, before it had any, one of the first worker
    that has a batch.
    """

    def vote(number: Array, mine: Array, *leaves: Array) -> list[Array]:
        with world.remembering_errors():
            if number == 0:
                votes = fitting.vote_with_checksum(comm, checksum_of(leaves) if mine else None)
                if 0 < sum(votes) < len(votes):
                    leaves = _broadcast_row(comm, leaves, votes.index(1.0))
            else:
                votes = comm.agree("more input?", float(mine))
        return [np.asarray(sum(votes) > 0), *leaves]

    flat = tf.nest.flatten(row)
    left, *given = tf.numpy_function(
        vote, [index, flag, *flat], [tf.bool, *(leaf.dtype for leaf in flat)]
    )
    same = [
        tf.ensure_shape(leaf, [1, *old.shape[1:]]) for leaf, old in zip(given, flat, strict=True)
    ]
    return tf.ensure_shape(left, []), tf.nest.pack_sequence_as(row, same)


def _broadcast_row(comm: Communicator, leaves: tuple[Array, ...], root: int) -> tuple[Array, ...]:
    """Returns rank ``root``'s row, on all workers: some have none."""
    texts = [leaf.dtype == object for leaf in leaves]
    sent = [leaf.tolist() if text else leaf for leaf, text in zip(leaves, texts, strict=True)]
    found = comm.broadcast_object(sent if comm.rank == root else None, root)
    return tuple(
        np.asarray(leaf, object) if text else leaf for leaf, text in zip(found, texts, strict=True)
    )


def _same(leaf: tf.Tensor | None) -> tf.Tensor | None:
    # None is an optional input that is left out.
    return None if leaf is None else tf.identity(leaf)


def _counts(data: object) -> list[tf.Tensor]:
    return [count_rows(leaf) for leaf in tf.nest.flatten(data) if has_rows(leaf)]


def _in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the data set with its records in one order, whatever the script's options say."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _without_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    # TensorFlow would add a prefetch, and read a share ahead of the step that wants it.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def iterating(original: Callable[[tf.data.Dataset], Result]) -> Callable[[tf.data.Dataset], Result]:
    """Wraps `tf.data.Dataset.__iter__`: records come in one order, no pipeline is tuned in vain."""
    # Deleting an iterator waits for the thread that tunes its pipeline. That thread sleeps for up
    # to a minute between two tunings (the longer the iterator has lived), and is woken before the
    # cancellation that it looks for is noted (`Model::OptimizeLoop` and `CancellationManager` of
    # TensorFlow 2.21). Where workers keep all cores busy, every second to third epoch ends with
    # such a pause, and all workers wait for it.

    def iterate(self: tf.data.Dataset) -> Result:
        if reproducible.is_read_by_all() and self.options().deterministic is False:
            self = _in_order(self)
        if tf.executing_eagerly() and world.sharing().world.size > 1 and _is_tuned_in_vain(self):
            untuned = tf.data.Options()
            untuned.autotune.enabled = False
            self = self.with_options(untuned)
        return original(self)

    return iterate


def _is_tuned_in_vain(dataset: tf.data.Dataset) -> bool:
    """Returns whether the tuning of a pipeline could change nothing."""
    # That is so where parallel calls begin with all threads that there are, and TensorFlow will
    # make no other calls parallel, which it does only if it tunes.
    options = dataset.options()
    threads = options.threading.private_threadpool_size or len(os.sched_getaffinity(0))
    few = threads <= _CALLS_AT_FIRST and options.autotune.enabled is None
    return few and not tf_internals_pipelines.has_maps_to_parallelize(dataset)


def _without_rows(spec: tf.TypeSpec) -> tf.Tensor:
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        raise DataError(
            "Batches per worker must be dense tensors with a batch dimension, so that a worker can"
            f" go on without samples. Received an element of {spec}."
        )
    return _rows_like(spec, 0)
