"""Buckets are an ordered partition within limits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.comm.fusion import plan

sizes_of_tensors = st.lists(st.integers(0, 50))
limits = st.integers(1, 100)


@pytest.mark.parametrize(
    ("sizes", "limit", "buckets"),
    [
        ([], 10, []),
        ([4], 10, [[0]]),
        ([4, 6], 10, [[0, 1]]),
        ([4, 7], 10, [[0], [1]]),
        ([25, 1, 1], 10, [[0], [1, 2]]),
        ([1, 25, 1], 10, [[0], [1], [2]]),
        ([0, 0, 0], 10, [[0, 1, 2]]),
    ],
)
def test_examples(sizes: list[int], limit: int, buckets: list[list[int]]) -> None:
    assert plan(sizes, limit) == buckets


@given(sizes_of_tensors, limits)
def test_a_plan_is_a_partition_in_order(sizes: list[int], limit: int) -> None:
    buckets = plan(sizes, limit)
    assert list(itertools.chain(*buckets)) == list(range(len(sizes)))
    assert all(buckets)


@given(sizes_of_tensors, limits)
def test_only_a_tensor_alone_may_exceed_the_limit(sizes: list[int], limit: int) -> None:
    for bucket in plan(sizes, limit):
        assert sum(sizes[i] for i in bucket) <= limit or len(bucket) == 1


@given(sizes_of_tensors, limits)
def test_no_bucket_ends_early(sizes: list[int], limit: int) -> None:
    for bucket, following in itertools.pairwise(plan(sizes, limit)):
        assert sum(sizes[i] for i in bucket) + sizes[following[0]] > limit
