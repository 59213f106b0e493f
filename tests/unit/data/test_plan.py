"""The plan: a pure function of a few numbers."""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syrtos.data.plan import STREAMS, Plan, block_records, permute, sum_of_records
from syrtos.errors import ConfigurationError

PLANS = st.builds(
    Plan,
    fingerprint=st.sampled_from(["a", "b"]),
    records=st.integers(0, 3000),
    batch=st.integers(1, 400),
    epoch=st.integers(0, 5),
    seed=st.one_of(st.none(), st.integers(0, 100)),
    block=st.integers(1, 500),
)


def order(plan: Plan) -> list[int]:
    return plan.records_at(np.arange(plan.records)).tolist()


@given(PLANS)
@settings(max_examples=200, deadline=None)
def test_an_epoch_has_each_record_once(plan: Plan) -> None:
    assert sorted(order(plan)) == list(range(plan.records))


@given(PLANS, st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_shares_of_any_number_of_workers_make_up_the_batch(plan: Plan, size: int) -> None:
    whole = order(plan)
    for step in {0, plan.steps // 2, max(plan.steps - 1, 0)}:
        shares = [plan.share(step, rank, size).tolist() for rank in range(size)]
        assert sorted(itertools.chain(*shares)) == sorted(
            whole[step * plan.batch : (step + 1) * plan.batch]
        )


@given(PLANS, st.data())
@settings(max_examples=50, deadline=None)
def test_one_world_takes_over_from_another_at_any_step(plan: Plan, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, plan.steps))
    before = [plan.share(s, rank, 4).tolist() for s in range(step) for rank in range(4)]
    rest = dataclasses.replace(plan, first=plan.place(step), batch=data.draw(st.integers(1, 400)))
    after = [rest.share(s, rank, 3).tolist() for s in range(rest.steps) for rank in range(3)]
    assert sorted(itertools.chain(*before, *after)) == list(range(plan.records))


@given(PLANS)
@settings(max_examples=50, deadline=None)
def test_the_same_numbers_give_the_same_order(plan: Plan) -> None:
    assert order(plan) == order(dataclasses.replace(plan))


def test_an_order_that_was_written_down() -> None:
    """It must never change: a run may go on with a later version."""
    plan = Plan("x", 20, 4, epoch=1, seed=7)
    assert order(plan) == [0, 15, 19, 2, 16, 18, 11, 1, 17, 13, 8, 10, 7, 9, 3, 4, 12, 14, 6, 5]
    assert order(dataclasses.replace(plan, block=3)) == [
        19,
        18,
        8,
        6,
        7,
        11,
        9,
        10,
        12,
        13,
        14,
        4,
        3,
        5,
        0,
        1,
        2,
        17,
        16,
        15,
    ]


def test_epochs_and_seeds_differ() -> None:
    plan = Plan("x", 1000, 10, seed=1)
    others = [
        dataclasses.replace(plan, **change)
        for change in ({"epoch": 1}, {"seed": 2}, {"fingerprint": "y"})
    ]
    assert len({tuple(order(each)) for each in [plan, *others]}) == 4


def test_without_a_seed_records_stay_in_order_and_shares_are_contiguous() -> None:
    plan = Plan("x", 10, 4)
    assert [plan.share(0, rank, 3).tolist() for rank in range(3)] == [[0], [1], [2, 3]]
    assert [plan.share(2, rank, 3).tolist() for rank in range(3)] == [[], [8], [9]]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shares_of_records_shuffled_one_by_one_are_the_rows_of_one_process_in_order(
    size: int,
) -> None:
    """A layer that draws gives each record what one process would have given it."""
    plan = Plan("x", 100, 32, seed=1)
    for step in range(plan.steps):
        rows = [index for rank in range(size) for index in plan.share(step, rank, size).tolist()]
        assert rows == plan.share(step).tolist()


@pytest.mark.parametrize("count", [2, 5, 10, 60, 1000])
def test_every_record_comes_everywhere(count: int) -> None:
    """Over many keys the place of a record is uniform: chi-squared within what chance allows."""
    keys = np.arange(20_000)
    seen = np.bincount(permute(np.full(len(keys), count // 2), count, keys), minlength=count)
    expected = len(keys) / count
    chi2 = float(((seen - expected) ** 2 / expected).sum())
    assert chi2 < count - 1 + 6 * np.sqrt(2 * (count - 1))


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_a_worker_reads_blocks_that_nobody_else_reads(size: int) -> None:
    """Records of one block are used by one worker, but for blocks at the edges of the streams."""
    plan = Plan("x", 1_000_000, 256, seed=1, block=1000)
    owners: dict[int, set[int]] = {}
    for step in range(0, plan.steps, 7):
        for rank in range(size):
            for block in (plan.share(step, rank, size) // plan.block).tolist():
                owners.setdefault(block, set()).add(rank)
    assert np.mean([len(ranks) for ranks in owners.values()]) < 1.3


def test_a_batch_mixes_many_blocks() -> None:
    plan = Plan("x", 1_000_000, 256, seed=1, block=1000)
    assert len(set((plan.share(1000) // plan.block).tolist())) > 150


def test_the_memory_bound_gives_the_block() -> None:
    assert block_records(1000, 10**6, 10**6) == 1
    assert block_records(10**6, 10**9, 240 * 10**5) * STREAMS * 1000 <= 240 * 10**5
    assert block_records(10, 10**9, 1) == 1


def test_any_place_is_found_at_once() -> None:
    plan = Plan("x", 100_000_000, 1024, seed=1, block=4096)
    started = time.process_time()
    plan.share(90_000)
    assert time.process_time() - started < 0.5


def test_sums_tell_records_apart() -> None:
    whole = sum_of_records(np.arange(100))
    assert (sum_of_records(np.arange(50)) + sum_of_records(np.arange(50, 100))) % 2**64 == whole
    assert sum_of_records(np.asarray([*range(99), 98])) != whole


def test_a_plan_without_a_batch_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one record"):
        Plan("x", 10, 0)
