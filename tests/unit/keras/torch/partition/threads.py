"""Workers in threads of one process, which exchange tensors by a list."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from syrtos.keras.torch.partition import rules
from syrtos.keras.torch.partition.placed import PlacedTensor
from syrtos.keras.torch.partition.placements import BatchShare, RowPart

assert rules
_SECONDS = 30.0


class _Meeting:
    """A place where all workers leave a value and take those of all."""

    def __init__(self, size: int) -> None:
        self.barrier, self._values = threading.Barrier(size), [None] * size

    def meet(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self.barrier.wait(_SECONDS)
        found = list(self._values)
        self.barrier.wait(_SECONDS)
        return found


class ThreadExchanges:
    """The exchanges of one worker; ``count`` of them were made."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self._rank, self.count = meeting, rank, 0

    def _meet(self, value: Any) -> list[Any]:
        self.count += 1
        return self._meeting.meet(self._rank, value)

    def gather(self, local: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._meet(local.detach().clone()))

    def sum(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        everyone = self._meet([part.detach().clone() for part in parts])
        return [torch.stack(list(each)).sum(0) for each in zip(*everyone, strict=True)]

    def extreme(self, local: torch.Tensor, largest: bool) -> torch.Tensor:
        everyone = torch.stack(self._meet(local.detach().clone()))
        return everyone.amax(0) if largest else everyone.amin(0)


def counts_of(total: int, size: int) -> list[int]:
    """Returns the rows of each worker; the first ones have one more."""
    return [total // size + (rank < total % size) for rank in range(size)]


def run(size: int, total: int, work: Callable[[BatchShare], Any]) -> list[Any]:
    """Returns what ``work`` returns on each worker; it raises what a worker raises."""
    meeting, found = _Meeting(size), [None] * size
    errors: list[BaseException] = []

    def worker(rank: int) -> None:
        share = BatchShare(counts_of(total, size), rank, ThreadExchanges(meeting, rank))
        share.whole = {}
        try:
            found[rank] = work(share)
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def spread(whole: torch.Tensor, share: BatchShare, dim: int = 0) -> torch.Tensor:
    """Returns a tensor of which each worker has its rows, along a dimension."""
    rows = RowPart(dim, whole.shape[dim] // share.total)
    return PlacedTensor(share.cut(whole, rows).clone(), rows, share)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a whole tensor; all workers call this together."""
    return tensor.whole() if isinstance(tensor, PlacedTensor) else tensor
