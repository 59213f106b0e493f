"""Statistics of the global batch for BatchNormalization, as ``--sync-batchnorm`` asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

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
    """Wraps a layer's `_moments`: with ``--sync-batchnorm`` they are those of the global batch."""

    # Layers keep their configuration: Keras would not load a model again whose layers say
    # ``synchronized`` on torch.
    def moments(
        self: _Normalization, inputs: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        current = step.current_step()
        # A trial counts layers as synchronized: of others it is known, and said, that their
        # statistics are a share's. Where each worker has all rows, the way in which one process
        # computes their statistics rounds less.
        synchronizes = (
            current is not None
            and (current.session.options.sync_batchnorm or current.outcome is not None)
            and not current.plan.reason_not_split
        )
        if current is None or mask is not None or not synchronizes:
            return original(self, inputs, mask)
        return _moments(current, inputs, self._reduction_axes)

    return moments


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
