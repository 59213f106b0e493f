"""This worker's rows of a batch, and the rows of all workers of an output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self, TypeGuard

import keras
import numpy as np
import numpy.typing as npt
import torch

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.comm.communicator import share_of as bounds_of
from syrtos.comm.world import Session
from syrtos.keras import fitting
from syrtos.keras.datasets import batches
from syrtos.keras.datasets.planned import Stream


class Rows(Protocol):
    """A tensor or an array that has rows."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, index: slice | npt.NDArray[np.int64], /) -> Self: ...

    def __len__(self) -> int: ...


class TorchShare(NamedTuple):
    """A worker's part of a batch.

    Attributes:
        samples: the number of this worker's rows.
        data: the rows. Where ``samples`` is 0, one row that does not count, of this batch or
            another: a model never meets an empty batch.
    """

    samples: int
    data: object


class _Idle:
    """The row that stands in place of a batch where this worker has no more, and others have."""

    def __init__(self, _session: Session) -> None:
        self.row: object = None


def share_of(batch: object, session: Session) -> TorchShare:
    """Returns this worker's contiguous rows of a global batch, without a copy.

    The batch has tensors, or arrays that the script gives by hand. With batches per worker all rows
    are this worker's.
    """
    if isinstance(batch, TorchShare):
        return batch
    if batch is world.part(_Idle).row and batch is not None:
        return TorchShare(0, batch)
    leaves = [leaf for leaf in keras.tree.flatten(batch) if has_rows(leaf)]
    total = len(leaves[0]) if leaves else 1
    if session.world.size == 1 or session.options.batch == "per-worker":
        return TorchShare(total, batch)
    start, stop = bounds_of(total, session.world.rank, session.world.size)
    # Some layers refuse an empty batch: a worker without samples computes with the first row, which
    # does not count.
    first, last = (0, 1) if start == stop else (start, stop)
    return TorchShare(stop - start, _rows(batch, first, last))


def _rows(batch: object, first: int, last: int) -> object:
    return keras.tree.map_structure(
        lambda leaf: leaf[first:last] if has_rows(leaf) else leaf, batch
    )


def has_rows(leaf: object) -> TypeGuard[Rows]:
    """Returns whether a leaf of a batch is a tensor or an array of at least one dimension."""
    return bool(getattr(leaf, "shape", ()))


def planned_shares(stream: Stream) -> Iterator[TorchShare]:
    """Yields this worker's shares of a planned data set, of which it reads no other record."""
    for samples, data in stream.shares():
        yield TorchShare(samples, keras.tree.map_structure(keras.ops.convert_to_tensor, data))


def until_all_have_ended(own: Iterator[object], comm: Communicator) -> Iterator[object]:
    """Yields this worker's batches, then a row that does not count until all workers run out."""
    row: object = None
    is_first = True
    while True:
        batch = next(own, None)
        # The others exchange in each step: a worker that has run out must take part in theirs.
        if is_first:
            votes = fitting.vote_with_checksum(
                comm, None if batch is None else batches.sum_of(batch)
            )
            is_first = False
        else:
            votes = comm.agree("more input?", float(batch is not None))
        if not any(votes):
            return
        if not all(votes) and any(
            comm.agree("a worker had no batch at all?", float(batch is None and row is None))
        ):
            row = _broadcast_row(comm, batch, votes.index(1.0))
        if batch is not None:
            row = keras.tree.map_structure(keras.ops.copy, _rows(batch, 0, 1))
        # `share_of` knows by this identity that the row does not count.
        world.part(_Idle).row = row if batch is None else None
        yield row if batch is None else batch


def _broadcast_row(comm: Communicator, batch: object, root: int) -> object:
    """Returns a row of rank ``root``'s batch, for a worker that never had one.

    Its structure is made of tuples, lists and dictionaries.
    """
    sent = None
    if comm.rank == root:
        sent = keras.tree.map_structure(np.asarray, _rows(batch, 0, 1))
    found = comm.broadcast_object(sent, root)
    return keras.tree.map_structure(lambda leaf: torch.from_numpy(np.array(leaf)), found)


def own_outputs(outputs: object, samples: int) -> object:
    """Returns this worker's rows of each output, without those of a row that does not count."""
    # Outputs may have any number of rows.
    return keras.tree.map_structure(
        lambda output: output[:0] if has_rows(output) and not samples else output, outputs
    )
