"""Exchanges of a partitioned step with the other workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from syrtos.comm.communicator import Communicator, ReduceOp
from syrtos.keras.torch import ops
from syrtos.keras.trainer import timing


class TensorExchange(Protocol):
    """TensorExchange of tensors with the other workers, which all make the same ones in the same order."""

    def gather(self, local: torch.Tensor) -> torch.Tensor:
        """Returns the workers' tensors, concatenated along the first dimension by rank."""
        ...

    def sum(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the sums of the workers' tensors, of one dtype each."""
        ...

    def extreme(self, local: torch.Tensor, largest: bool) -> torch.Tensor:
        """Returns the elementwise maximum, or minimum, of the workers' tensors."""
        ...


class TensorExchanges:
    """Exchanges of tensors by a communicator; gradients travel in buckets."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def gather(self, local: torch.Tensor) -> torch.Tensor:
        """Returns the workers' tensors, concatenated along the first dimension by rank."""
        with timing.exchanging():
            if local.dtype.is_complex:
                parts = ops.allgather(self._comm, torch.view_as_real(local.resolve_conj()))
                return torch.view_as_complex(parts)
            return ops.allgather(self._comm, local.resolve_neg())

    def sum(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the sums of the workers' tensors, of one dtype each, in one exchange."""
        found: dict[int, torch.Tensor] = {}
        for dtype in dict.fromkeys(part.dtype for part in parts):
            mine = [part for part in parts if part.dtype is dtype]
            with timing.exchanging():
                flat = torch.cat([part.detach().reshape(-1) for part in mine])
                flat = torch.view_as_real(flat) if dtype.is_complex else flat
                total = ops.allreduce(self._comm, flat)
            total = torch.view_as_complex(total) if dtype.is_complex else total
            cut = total.split([part.numel() for part in mine])
            found |= {id(p): c.reshape(p.shape) for p, c in zip(mine, cut, strict=True)}
        return [found[id(part)] for part in parts]

    def extreme(self, local: torch.Tensor, largest: bool) -> torch.Tensor:
        """Returns the elementwise maximum, or minimum, of the workers' tensors."""
        wide = local.to(torch.uint8) if local.dtype is torch.bool else local
        with timing.exchanging():
            found = ops.allreduce(self._comm, wide, ReduceOp.MAX if largest else ReduceOp.MIN)
        return found.to(local.dtype)

    def gradients(
        self, parts: Sequence[torch.Tensor], variables: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns the sums of the workers' gradients, which may be compressed on their way."""
        means = ops.weighted_mean(self._comm, list(parts), 1.0, variables=variables)
        return [mean * self._comm.size for mean in means]
