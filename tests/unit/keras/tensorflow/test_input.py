"""Shares of batches: together they are the batch, whatever it is made of."""

from __future__ import annotations

import concurrent.futures
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.errors import DataError
from syrtos.keras.datasets.checksums import is_compared
from syrtos.keras.tensorflow import ops, tf_internals
from syrtos.keras.tensorflow.input import (
    cut,
    global_batches,
    numbered_batches,
    spec_of_share,
    worker_batches,
)
from syrtos.keras.tensorflow.input_comparison import LEFT_TO_THREADS, is_compared_in_graph

Answer = Callable[[float], list[float]]


class OneOf(InProcessCommunicator):
    """One worker of a group whose others agree, or answer as told."""

    def __init__(self, rank: int, size: int, answer: Answer | None = None) -> None:
        super().__init__(rank, size)
        self.calls: list[str] = []
        self._answer = answer or (lambda mine: [mine] * size)

    def agree(self, call: str, value: float = 0.0) -> list[float]:
        self.calls.append(call)
        return self._answer(value)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """It is the root."""
        return value


def shares(dataset: Any, size: int) -> list[list[Any]]:
    """What each worker reads of each batch."""
    return [list(global_batches(dataset, OneOf(rank, size))) for rank in range(size)]


def busy_for(rounds: int) -> Answer:
    """Another worker that has ``rounds`` batches of its own."""
    left = iter([1.0] * rounds)
    return lambda mine: [mine, next(left, 0.0)]


def counts(batches: Any) -> list[int]:
    return [int(batch.shape[0]) for batch in batches]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("drop", [True, False])
def test_shares_in_rank_order_are_the_batch(size: int, drop: bool) -> None:
    data = np.arange(22).reshape(11, 2)
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(4, drop_remainder=drop)
    for whole, *parts in zip(dataset, *shares(dataset, size), strict=True):
        np.testing.assert_array_equal(
            np.concatenate([part.numpy() for part in parts]), whole.numpy()
        )
        assert max(counts(parts)) - min(counts(parts)) <= 1


def test_a_worker_may_have_no_rows_of_a_small_batch() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(5.0)).batch(4)
    assert [counts(mine) for mine in shares(dataset, 4)] == [[1, 0], [1, 0], [1, 0], [1, 1]]


def test_a_share_without_rows_holds_a_row_that_does_not_count() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(
        (np.arange(1, 6), ["a", "b", "c", "d", "e"])
    ).batch(4)
    for rank, expected in enumerate([(0, 5), (0, 5), (0, 5), (1, 5)]):
        *_, last = tf_internals.counted_pipeline(global_batches(dataset, OneOf(rank, 4)))
        assert (int(last.samples), int(last.data[0][0]), last.data[1].numpy().tolist()) == (
            *expected,
            [b"e"],
        )


def test_a_worker_that_has_run_out_holds_a_row_of_its_own() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(1, 6)).batch(2)
    *_, last, idle = tf_internals.counted_pipeline(
        worker_batches(dataset, OneOf(0, 2, busy_for(4)))
    )
    assert (int(last.samples), last.data.numpy().tolist()) == (1, [5])
    assert (int(idle.samples), idle.data.numpy().tolist()) == (0, [5])


def test_a_worker_that_never_had_a_batch_holds_a_row_of_another() -> None:
    def read(comm: InProcessCommunicator) -> list[Any]:
        rows = tf.data.Dataset.from_tensor_slices((np.arange(1, 4), ["a", "b", "c"])).take(
            3 if comm.rank else 0
        )
        return list(tf_internals.counted_pipeline(worker_batches(rows.batch(2), comm)))

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        without, _ = threads.map(read, InProcessCommunicator.world(2))
    assert [int(share.samples) for share in without] == [0, 0]
    assert [[leaf.numpy().tolist() for leaf in share.data] for share in without] == [
        [[1], [b"a"]]
    ] * 2


def test_sizes_of_shares_are_static_only_where_they_are_equal() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(8)).batch(4, drop_remainder=True)
    specs: list[Any] = [global_batches(dataset, OneOf(1, size)).element_spec for size in (2, 3)]
    assert [spec.shape.as_list() for spec in specs] == [[2], [None]]


def test_the_structure_of_elements_is_kept() -> None:
    element: Any = ({"a": np.arange(4), "b": np.arange(8).reshape(4, 2)}, np.arange(4.0))
    (batch,) = shares(tf.data.Dataset.from_tensor_slices(element).batch(4), 2)[1]
    features, labels = batch
    assert features["a"].numpy().tolist() == [2, 3]
    assert features["b"].numpy().tolist() == [[4, 5], [6, 7]]
    assert labels.numpy().tolist() == [2.0, 3.0]


def test_an_input_that_is_left_out_stays_so() -> None:
    """As Keras has optional ones."""
    dataset = (
        tf.data.Dataset.from_tensor_slices(np.arange(4.0))
        .batch(4)
        .map(lambda x: ({"a": x, "b": None}, x))
    )
    ((features, _),) = shares(dataset, 2)[1]
    assert features["a"].numpy().tolist() == [2, 3]
    assert features["b"] is None


def test_strings_and_booleans_are_shared_too() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((["a", "b", "c"], [True, False, True])).batch(3)
    ((texts, flags),) = shares(dataset, 2)[1]
    assert (texts.numpy().tolist(), flags.numpy().tolist()) == ([b"b", b"c"], [False, True])


def test_sparse_rows_are_shared() -> None:
    dense = np.diag(np.arange(1.0, 6.0))
    dataset = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(dense)).batch(5)
    parts = [tf.sparse.to_dense(mine[0]).numpy() for mine in shares(dataset, 2)]
    np.testing.assert_array_equal(np.concatenate(parts), dense)
    assert counts(parts) == [2, 3]


def test_ragged_rows_are_shared() -> None:
    ragged = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6]])
    dataset = tf.data.Dataset.from_tensors(ragged)
    assert [mine[0].to_list() for mine in shares(dataset, 2)] == [[[1], [2, 3]], [[], [4, 5, 6]]]


def test_what_has_no_rows_is_everyones() -> None:
    dataset = tf.data.Dataset.from_tensors((tf.range(4), tf.constant(0.5)))
    for mine in shares(dataset, 2):
        assert mine[0][1].numpy() == 0.5


def test_batches_from_a_python_function_are_shared() -> None:
    dataset = tf.data.Dataset.from_tensors(np.arange(4)).map(
        lambda x: tf.numpy_function(np.negative, [x], tf.int64)
    )
    assert [counts(mine) for mine in shares(dataset, 2)] == [[2], [2]]


def test_workers_that_read_different_data_are_told() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(8.0)).batch(4)
    comm = OneOf(0, 3, lambda mine: [mine, mine + 1, mine])
    with pytest.raises(
        tf.errors.UnknownError, match=r"different data in batch 0: ranks \[0, 2\] / \[1\] disagree"
    ):
        list(global_batches(dataset, comm))


@pytest.mark.parametrize(
    ("first", "second"), [(np.arange(8.0), np.arange(8.0)[::-1]), (np.zeros(8), np.eye(1, 8)[0])]
)
def test_checksums_tell_batches_apart(first: Any, second: Any) -> None:
    assert checksum_of(first) == checksum_of(first.copy())
    assert checksum_of(first) != checksum_of(second)


def checksum_of(data: Any) -> float:
    seen: list[float] = []
    comm = OneOf(0, 1, lambda mine: [seen.append(mine) or mine])
    list(global_batches(tf.data.Dataset.from_tensors(data), comm))
    return seen[0]


@pytest.mark.usefixtures("no_session")
def test_the_error_of_the_input_thread_is_found_after_a_later_exchange() -> None:
    world.init()
    batches = tf.data.Dataset.range(8).batch(4).prefetch(2)
    read = iter(global_batches(batches, OneOf(0, 2, lambda mine: [mine, mine + 1])).prefetch(2))
    with pytest.raises(tf.errors.OpError) as caught:
        next(read)
    ops.exchange(lambda: [np.zeros(())], [], [tf.float64])
    original = world.original_of(caught.value)
    assert isinstance(original, DataError)
    assert str(original).startswith("Workers read different data in batch 0")


def test_batches_are_compared_now_and_then() -> None:
    comm = OneOf(0, 2)
    list(global_batches(tf.data.Dataset.range(130).batch(1), comm))
    assert len(comm.calls) == len([0, 1, 2, 4, 8, 16, 32, 64, 128])


@pytest.mark.parametrize("first", [0, LEFT_TO_THREADS])
def test_graphs_compare_the_batches_that_python_does(first: int) -> None:
    for number in range(200):
        index = tf.constant(first + number, tf.int32)
        assert bool(is_compared_in_graph(index)) == is_compared(number)


FORMS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: tf.data.Dataset.from_tensor_slices(
        (np.arange(22).reshape(11, 2), np.arange(11.0))
    ).batch(4),
    "static": lambda: tf.data.Dataset.from_tensor_slices(np.arange(8)).batch(
        4, drop_remainder=True
    ),
    "strings": lambda: tf.data.Dataset.from_tensor_slices(
        (["a", "b", "c"], [True, False, True])
    ).batch(2),
    "ragged": lambda: tf.data.Dataset.from_tensors(
        tf.ragged.constant([[1], [2, 3], [], [4, 5, 6]])
    ),
    "sparse": lambda: tf.data.Dataset.from_tensor_slices(
        tf.sparse.from_dense(np.diag(np.arange(1.0, 6.0)))
    ).batch(5),
    "scalar": lambda: tf.data.Dataset.from_tensors((tf.range(4), tf.constant(0.5))),
    "left_out": lambda: tf.data.Dataset.range(4).batch(4).map(lambda x: ({"a": x, "b": None}, x)),
    "one_row": lambda: tf.data.Dataset.range(1).batch(1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("in_graph", [True, False])
def test_a_step_cuts_the_share_that_a_pipeline_gives(form: str, in_graph: bool) -> None:
    dataset = FORMS[form]()
    for size in (2, 3):
        for rank in range(size):
            comm = OneOf(rank, size)
            numbered = numbered_batches(dataset)
            cut_it = (tf.function if in_graph else lambda call: call)(
                lambda batch, comm=comm: cut(batch, comm)
            )
            given = list(tf_internals.counted_pipeline(global_batches(dataset, OneOf(rank, size))))
            for mine, theirs in zip(map(cut_it, numbered), given, strict=True):
                assert int(mine.samples) == int(theirs.samples)
                for one, other in zip(
                    *(tf.nest.flatten(each.data, True) for each in (mine, theirs)), strict=True
                ):
                    np.testing.assert_array_equal(one, other)


def test_a_step_that_was_traced_for_shares_is_traced_again_for_batches_that_it_cuts() -> None:
    """One `fit` may have planned data, and the next arrays."""
    data = tf.data.Dataset.range(8).batch(3)
    traced: list[str] = []

    @tf.function
    def step(batches: Any) -> Any:
        batch = next(batches)
        traced.append(type(batch).__name__)
        return batch

    for batches in (
        tf_internals.counted_pipeline(global_batches(data, OneOf(0, 2))),
        numbered_batches(data),
    ):
        step(iter(batches))
    assert traced == ["TensorShare", "Numbered"]


def test_batches_that_steps_cut_are_not_read_ahead() -> None:
    """Sources of all workers then stand at the same place when an epoch ends early."""
    drawn: list[int] = []

    def records() -> Any:
        for number in range(1000):
            drawn.append(number)
            yield number

    data = tf.data.Dataset.from_generator(
        records, output_signature=tf.TensorSpec([], tf.int64)
    ).batch(8)
    options = tf.data.Options()
    options.autotune.enabled = True
    batches = iter(numbered_batches(data).with_options(options))
    for _ in range(5):
        next(batches)
    assert len(drawn) == 40


def test_the_spec_of_a_share_is_static_only_where_shares_are_equal() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((np.zeros((8, 2)), np.arange(8))).batch(
        4, drop_remainder=True
    )
    specs = [
        spec_of_share(numbered_batches(dataset).element_spec, OneOf(0, size)) for size in (2, 3)
    ]
    assert [[leaf.shape.as_list() for leaf in spec] for spec in specs] == [
        [[2, 2], [2]],
        [[None, 2], [None]],
    ]


@pytest.mark.parametrize(
    ("calls", "compared"), [(None, True), (4, False)], ids=["alike", "left to threads"]
)
def test_steps_compare_what_workers_read_now_and_then(calls: int | None, compared: bool) -> None:
    seen: list[float] = []
    comm = OneOf(0, 2, lambda mine: [seen.append(mine) or mine] * 2)
    data = (
        tf.data.Dataset.range(130)
        .map(lambda n: tf.numpy_function(lambda n: n, [n], tf.int64), calls)
        .batch(1)
    )
    for batch in numbered_batches(data):
        cut(batch, comm)
    assert (len(seen), len(set(seen))) == (
        9,
        9 if compared else 1,
    )  # numbers of rows are the same in all batches


def test_a_worker_goes_on_without_rows_until_all_have_run_out() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((np.ones((5, 3), np.float32), np.arange(5))).batch(
        2
    )
    batches = list(worker_batches(dataset, OneOf(0, 2, busy_for(5))))
    assert counts(x for x, _ in batches) == [2, 2, 1, 0, 0]
    assert counts(y for _, y in batches) == [2, 2, 1, 0, 0]
    assert batches[-1][0].shape == (0, 3)
    assert (batches[-1][0].dtype, batches[-1][1].dtype) == (tf.float32, tf.int64)


def test_a_worker_reads_all_its_own_batches() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(6.0)).batch(2)
    batches = list(worker_batches(dataset, OneOf(0, 2, busy_for(1))))
    np.testing.assert_array_equal(
        np.concatenate([batch.numpy() for batch in batches]), np.arange(6.0)
    )


@pytest.mark.parametrize("split", [global_batches, worker_batches])
def test_a_data_set_that_comes_twice_is_freed_with_its_shares(split: Any) -> None:
    def split_twice() -> weakref.ref[object]:
        dataset: Any = tf.data.Dataset.from_tensor_slices(np.zeros((8, 2))).batch(4)
        for _ in range(3):
            kept = tf_internals.kept_shares(dataset, "here", lambda: split(dataset, OneOf(0, 2)))
            assert tf_internals.counted_pipeline(kept) is not kept
        return weakref.ref(dataset)

    known = split_twice()
    gc.collect()
    assert known() is None


def test_data_of_another_kind_is_no_share_and_is_not_kept() -> None:
    arrays = np.zeros((8, 2))
    known = weakref.ref(arrays)
    assert not tf_internals.is_shared_out({"inputs": arrays})
    del arrays
    gc.collect()
    assert known() is None


def test_one_vote_goes_before_each_batch() -> None:
    comm = OneOf(0, 2, busy_for(0))
    assert counts(worker_batches(tf.data.Dataset.range(4).batch(2), comm)) == [2, 2]
    assert comm.calls == ["more input?"] * 3


def test_dictionaries_pass_through() -> None:
    element: Any = {"a": np.arange(2)}
    dataset = tf.data.Dataset.from_tensor_slices(element).batch(2)
    batches = list(worker_batches(dataset, OneOf(0, 2, busy_for(2))))
    assert counts(batch["a"] for batch in batches) == [2, 0]


def test_tuples_of_one_pass_through() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((np.arange(2.0),)).batch(2)
    batches = list(worker_batches(dataset, OneOf(0, 2, busy_for(2))))
    assert counts(x for (x,) in batches) == [2, 0]


@pytest.mark.parametrize(
    "element", [tf.constant(1.0), tf.ragged.constant([[1], [2, 3]])], ids=["scalar", "ragged"]
)
def test_what_can_not_be_without_rows_is_refused(element: Any) -> None:
    with pytest.raises(DataError, match="dense tensors with a batch dimension"):
        worker_batches(tf.data.Dataset.from_tensors(element), OneOf(0, 2))
