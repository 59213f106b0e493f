"""Buckets of tensors that are exchanged together.

They are a static plan, made once from sizes that are equal on all workers.
"""

from __future__ import annotations

from collections.abc import Sequence

from syrtos.comm import world


def plan_of_run(sizes: Sequence[int]) -> list[list[int]]:
    """Groups tensors as `plan` does, into buckets of the size that the run's options say."""
    return plan(sizes, int(world.current().options.bucket_mb * 1e6))


def plan(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Groups tensors into buckets of at most ``limit`` bytes, in order.

    Args:
        sizes: bytes of each tensor, in the order in which they become ready.
        limit: most bytes of a bucket; a larger tensor gets one of its own.

    Returns:
        Lists of indices into ``sizes``: a partition, in order.
    """
    buckets: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if size > room or not buckets:
            buckets.append([])
            room = limit
        buckets[-1].append(index)
        room -= size
    return buckets
