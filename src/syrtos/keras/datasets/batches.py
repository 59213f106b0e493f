"""Iterators over in-memory batches of Keras's own adapters, timed and compared between workers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import keras
import numpy as np

from syrtos.comm import world

# Global batches between two comparisons of what the workers read.
_COMPARE_EVERY = 64

Batch = TypeVar("Batch")
Check = Callable[[list[float], int], None]


def timed_batches(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yields the batches as a step takes them; the time they take counts as input."""
    ledger = world.sharing().ledger
    while True:
        with ledger.span("input"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def compared_batches(batches: Iterator[Batch], check: Check) -> Iterator[Batch]:
    """Yields the batches, and compares some of them between workers.

    ``check`` is given the checksums of all workers, and the number of the batch.
    """
    comm = world.sharing().comm
    for number, batch in enumerate(batches):
        # Also batches 1, 2, 4, 8 and so on, so that data which differs is found soon.
        if number % _COMPARE_EVERY == 0 or number.bit_count() == 1:
            check(comm.agree("compare input", float(_sum_of(batch))), number)
        yield batch


def check_equal(batch: object, check: Check) -> None:
    """Compares a batch given by hand between workers: calls ``check`` like `compared_batches`."""
    comm = world.sharing().comm
    if comm.size > 1:
        check(comm.agree("compare input", float(_sum_of(batch))), 0)


def _sum_of(batch: object) -> int:
    """Returns a checksum of the first, the middle and the last row of each array."""
    checksum = 0
    for leaf in keras.tree.flatten(batch):
        if (
            not getattr(leaf, "shape", None)
            or getattr(leaf, "is_sparse", False)
            or hasattr(leaf, "todense")
        ):
            continue
        # A tensor of torch may be on another device, where `np.asarray` can't read it.
        rows = leaf if hasattr(leaf, "detach") else np.asarray(leaf)
        array = keras.ops.convert_to_numpy(
            rows[np.array([0, len(rows) // 2, -1])] if len(rows) else rows
        )
        checksum = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, checksum)
    return checksum
