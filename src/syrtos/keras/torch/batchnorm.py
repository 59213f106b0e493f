"""Statistics of the global batch for BatchNormalization, as ``--sync-batchnorm`` asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from syrtos.keras.patching import Method
from syrtos.keras.torch import ops, step


def synchronize_moments(original: Method) -> Method:
    """Wraps a layer's `_moments`: with ``--sync-batchnorm`` they are those of the global batch.

    Layers keep their configuration: Keras would not load a model again whose layers say ``synchronized`` on torch.
    """

    def moments(self: Any, inputs: Any, mask: Any) -> Any:
        current = step.current_step()
        synchronizes = current is not None and (current.session.options.sync_batchnorm or current.outcome is not None)
        if current is None or mask is not None or not synchronizes:
            return original(self, inputs, mask)
        return _moments(current, inputs, self._reduction_axes)

    return moments


def _moments(current: step.StepScope, x: torch.Tensor, axes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns mean and variance as Keras computes them: E[x²] - E[x]².

    They are computed in float32 at least, and lie within the range of ``x``.
    """
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    reduced = tuple(axis % x.ndim for axis in axes)
    count = wide.new_tensor([math.prod(x.shape[axis] for axis in reduced)])
    mine = torch.cat([wide.sum(reduced).reshape(-1), wide.square().sum(reduced).reshape(-1), count])
    if not current.samples:  # a row that does not count; its gradient takes part in the exchange
        mine = torch.where(torch.zeros_like(mine, dtype=torch.bool), mine, torch.zeros_like(mine))
    total = _Total.apply(mine, current)
    shape = [n for axis, n in enumerate(x.shape) if axis not in reduced]
    mean, square = (total[:-1] / total[-1]).reshape(2, *shape)
    limits = torch.finfo(x.dtype)
    return tuple(value.clip(limits.min, limits.max).to(x.dtype) for value in (mean, square - mean.square()))  # type: ignore[return-value]


class _Total(torch.autograd.Function):
    """The sum over workers, with a gradient.

    Workers' losses are means of their shares: the gradients that come back count by their samples, and go on as those
    of this worker's share, which are weighted once more when they are reduced.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, current: step.StepScope) -> torch.Tensor:
        ctx.current = current
        with current.session.ledger.span("exchange"):
            return ops.allreduce(current.session.comm, value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        current: step.StepScope = ctx.current
        fraction = current.fraction()
        weighted = grads[0] * fraction if current.samples else torch.zeros_like(grads[0])
        with current.session.ledger.span("exchange"):
            return ops.allreduce(current.session.comm, weighted) / fraction, None
