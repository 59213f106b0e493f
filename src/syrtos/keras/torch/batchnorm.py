"""Statistics of the global batch for BatchNormalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import keras
import torch

from syrtos.keras.patching import Method
from syrtos.keras.torch import ops, step


class _Normalization(Protocol):
    """The members of Keras's `BatchNormalization` that its statistics need, once it is built."""

    _reduction_axes: Sequence[int]


class _TotalContext(Protocol):
    """The tensors that `_Total` keeps between its two passes."""

    current: step.TorchStep


def synchronize_moments(original: Method) -> Method:
    """Wraps a layer's `_moments`: in a step on a share they are those of the global batch."""

    # Layers keep their configuration: Keras would not load a model again whose layers say
    # ``synchronized`` on torch.
    def moments(
        self: _Normalization, inputs: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        current = step.current_step()
        if current is None or not current.splits_batch:
            return original(self, inputs, mask)
        if mask is None:
            return _moments(current, inputs, self._reduction_axes)
        return _masked_moments(current, inputs, mask, self._reduction_axes)

    return moments


def _masked_moments(
    current: step.TorchStep, x: torch.Tensor, mask: torch.Tensor, axes: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the mean and variance of what a mask keeps of the global batch, by Keras's formulas (3.15.1)."""
    reduced = tuple(axis % x.ndim for axis in axes)
    kept = mask.unsqueeze(-1).expand(x.shape).bool()
    if not current.samples:
        kept = torch.zeros_like(kept)
    shape = [1 if axis in reduced else n for axis, n in enumerate(x.shape)]
    mine = torch.stack([torch.where(kept, x, 0).sum(reduced), kept.to(x.dtype).sum(reduced)])
    total, weights = _Total.apply(mine, current)
    weights = weights.reshape(shape) + keras.config.epsilon()
    mean = total.reshape(shape) / weights
    squares = torch.where(kept, x - mean, 0).square().sum(reduced)
    variance = _Total.apply(squares, current).reshape(shape) / weights
    return mean.squeeze(), variance.squeeze()


def _moments(
    current: step.TorchStep, x: torch.Tensor, axes: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the global batch's mean and variance, in the dtype of ``x`` and within its range."""
    # As Keras computes them: E[x²] - E[x]², in float32 at least. One exchange gives both, where
    # E[(x - mean)²] would take a second one.
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    reduced = tuple(axis % x.ndim for axis in axes)
    count = wide.new_tensor([math.prod(x.shape[axis] for axis in reduced)])
    mine = torch.cat([wide.sum(reduced).reshape(-1), wide.square().sum(reduced).reshape(-1), count])
    if not current.samples:
        # The row does not count. Its zeros are a part of the graph still: all workers meet in
        # `backward` too.
        mine = torch.where(torch.zeros_like(mine, dtype=torch.bool), mine, torch.zeros_like(mine))
    total = _Total.apply(mine, current)
    shape = [n for axis, n in enumerate(x.shape) if axis not in reduced]
    mean, square = (total[:-1] / total[-1]).reshape(2, *shape)
    limits = torch.finfo(x.dtype)
    variance = square - mean.square()
    return mean.clip(limits.min, limits.max).to(x.dtype), variance.clip(limits.min, limits.max).to(
        x.dtype
    )


class _Total(torch.autograd.Function):
    """The sum over workers, with a gradient."""

    @staticmethod
    def forward(ctx: _TotalContext, value: torch.Tensor, current: step.TorchStep) -> torch.Tensor:
        ctx.current = current
        with current.session.ledger.span("exchange"):
            return ops.allreduce(current.session.comm, value)

    @staticmethod
    def backward(ctx: _TotalContext, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Workers' losses are means of their shares: the gradients that come back count by their
        # samples, and go on as those of this worker's share, which are weighted once more when they
        # are reduced.
        current = ctx.current
        fraction = current.fraction()
        weighted = grads[0] * fraction if current.samples else torch.zeros_like(grads[0])
        with current.session.ledger.span("exchange"):
            return ops.allreduce(current.session.comm, weighted) / fraction, None
