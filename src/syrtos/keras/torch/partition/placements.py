"""The parts of a tensor that workers have: rows, terms of a sum, or all of it."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from syrtos.keras.torch import torch_internals

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

    from syrtos.keras.torch.partition.exchanges import TensorExchange

    _Pair = tuple[StorageWeakRef, StorageWeakRef]


@dataclasses.dataclass(frozen=True)
class RowPart:
    """A part with the entries of this worker's rows, along one dimension.

    Attributes:
        dim: the dimension, counted from the first.
        each: the entries of the dimension for each row of the batch.
    """

    dim: int
    each: int


@dataclasses.dataclass(frozen=True)
class SumTerm:
    """A term of a sum: the tensor is the sum of the workers' tensors."""


@dataclasses.dataclass(frozen=True)
class WholeTensor:
    """All of a tensor, which every worker has."""


Placement = RowPart | SumTerm | WholeTensor
TERM, WHOLE = SumTerm(), WholeTensor()


_NUMBERS = itertools.count()


class BatchShare:
    """This worker's rows of a batch: ``start`` up to, without, ``start + count`` of ``total``.

    Attributes:
        number: later batches have larger ones.
        counts: the rows of each worker; each has at least two.
        exchanges: with the other workers.
        alive: the tensors that were made in the step so far.
        pending: small sums that no exchange has added up yet.
        whole: the operations that every worker has computed whole, with the lines of the script, if
            they are noted.
    """

    def __init__(self, counts: Sequence[int], rank: int, exchanges: TensorExchange) -> None:
        """
        Args:
            counts: see above.
            rank: this worker's.
            exchanges: see above.
        """
        self.counts, self.exchanges = tuple(counts), exchanges
        self.number = next(_NUMBERS)
        self.total, self.count = sum(counts), counts[rank]
        self.start = sum(counts[:rank])
        self.alive: list[weakref.ref[torch.Tensor]] = []
        # Not weak references: what is alive may differ between workers by when cycles are collected.
        self.pending: list[torch.Tensor] = []
        self.whole: dict[str, int] | None = None
        # Below autograd torch does not count versions.
        self._writes: dict[int, int] = {}
        # Pairs of memory and a copy that one process would have as a view of it, by both addresses.
        self._copies: dict[int, list[_Pair]] = {}

    def writes_to(self, local: torch.Tensor) -> int:
        """Returns how often memory was written to in the step so far."""
        return self._writes.get(local.untyped_storage().data_ptr(), 0) if self._writes else 0

    def note_copy(self, local: torch.Tensor, copy: torch.Tensor) -> None:
        """Notes that a copy was made of memory of which one process has a view."""
        pair = (torch_internals.storage_reference(local), torch_internals.storage_reference(copy))
        for one in (local, copy):
            pairs = self._copies.setdefault(one.untyped_storage().data_ptr(), [])
            # Memory that is free may be another tensor's at the same address.
            pairs[:] = [*filter(_is_alive, pairs), pair]

    def note_write(self, local: torch.Tensor) -> None:
        """Notes that memory was written to.

        Raises:
            NotImplementedError: one process would find what was written in a view, which is a copy
                here, or in what the view is of.
        """
        place = local.untyped_storage().data_ptr()
        if any(map(_is_alive, self._copies.get(place, ()))):
            raise NotImplementedError(
                "A complex tensor and its conjugate are one memory in one process, and two on"
                " workers: this writes into one of them, and the other may be in use. Write"
                " `conj_physical()` in the place of `conj()`, or do not write in place."
            )
        self._writes[place] = self._writes.get(place, 0) + 1

    def is_like(self, other: BatchShare) -> bool:
        """Returns whether rows of both are those of the same places."""
        return self is other or self.counts == other.counts

    def cut(self, tensor: torch.Tensor, rows: RowPart) -> torch.Tensor:
        """Returns this worker's rows of a whole tensor, which is not copied."""
        return tensor.narrow(rows.dim, self.start * rows.each, self.count * rows.each)


def _is_alive(pair: _Pair) -> bool:
    """Returns whether something still uses both memories."""
    return not any(memory.expired() for memory in pair)
