"""Iterators over in-memory batches of Keras's own adapters, timed and compared between workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras
import numpy as np
import numpy.typing as npt

from syrtos.comm import world
from syrtos.keras.datasets import checksums

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
        if checksums.is_compared(number):
            check(comm.agree("compare input", sum_of(batch)), number)
        yield batch


def check_equal(batch: object, check: Check) -> None:
    """Compares a batch given by hand between workers: calls ``check`` like `compared_batches`."""
    comm = world.sharing().comm
    if comm.size > 1:
        check(comm.agree("compare input", sum_of(batch)), 0)


def sum_of(batch: object) -> float:
    """Returns a checksum of a batch: of its dense arrays, in any structure."""
    leaves = keras.tree.flatten(batch)
    return checksums.checksum_of(_array_of(leaf) for leaf in leaves if _has_dense_rows(leaf))


def _has_dense_rows(leaf: object) -> bool:
    is_sparse = getattr(leaf, "is_sparse", False) or hasattr(leaf, "todense")
    return bool(getattr(leaf, "shape", None)) and not is_sparse


# An array or tensor of any library.
def _array_of(leaf: Any) -> npt.NDArray[np.generic]:
    # A tensor of torch may be on another device, where `np.asarray` can't read it, and need not
    # come from there whole.
    rows = leaf if hasattr(leaf, "detach") else np.asarray(leaf)
    return np.asarray(keras.ops.convert_to_numpy(checksums.compared_rows(rows)))
