"""Rules of `torch.nn.BatchNorm*`, whose statistics are those of all rows.

Formulas: Ioffe and Szegedy 2015 (arXiv:1502.03167), algorithm 1 and section 3; squares about the
workers' own means are joined by formula 2.1 of Chan, Golub, LeVeque, "Algorithms for Computing the
Sample Variance" (1983).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placed import PlacedTensor
from syrtos.keras.torch.partition.placements import TERM, BatchShare, RowPart
from syrtos.keras.torch.partition.rules.elementwise import part_of

_ROWS = RowPart(0, 1)
_WIDE = torch.float64


@table.rule("native_batch_norm")
def batch_norm(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Normalizes channels, the second dimension; returns mean and inverse deviation too."""
    x, *vectors, is_training, momentum, eps = args
    share = _share_of(x, vectors)
    if share is None or kwargs:
        return NotImplemented
    if not is_training:
        out, *rest = func(x.local, *vectors, is_training, momentum, eps)
        return (PlacedTensor(out, _ROWS, share), *rest)
    weight, bias, running_mean, running_variance = vectors
    count = x.numel() / x.shape[1]
    mean, variance = _moments(x.local, count, share)
    _follow(running_mean, mean, momentum)
    # torch's moving variance is the unbiased one.
    _follow(running_variance, variance * (count / max(count - 1.0, 1.0)), momentum)
    mean, deviation = (each.to(_kind_of(x.local)) for each in (mean, torch.rsqrt(variance + eps)))
    normal = (x.local - _wide(mean, x)) * _wide(deviation, x)
    normal = normal if weight is None else normal * _wide(weight, x)
    normal = normal if bias is None else normal + _wide(bias, x)
    return PlacedTensor(normal.to(x.local.dtype), _ROWS, share), mean, deviation


@table.rule("native_batch_norm_backward")
def batch_norm_backward(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The gradients of rows, which depend on sums over all rows, and of weight and bias."""
    grad, x, *vectors, is_training, eps, wanted = args
    share = _share_of(x, vectors)
    mine = None if share is None else part_of(grad, _ROWS, share)
    if share is None or mine is None or kwargs:
        return NotImplemented
    if not is_training:
        dx, *sums = func(mine, x.local, *vectors, is_training, eps, wanted)
        placed = [None if each is None else PlacedTensor(each, TERM, share) for each in sums]
        return (None if dx is None else PlacedTensor(dx, _ROWS, share), *placed)
    weight, _, _, mean, deviation = vectors
    dy = mine.to(_kind_of(mine))
    normal = (x.local - _wide(mean, x)) * _wide(deviation, x)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    of_weight, of_bias = share.exchanges.sum([(dy * normal).sum(axes), dy.sum(axes)])
    count = x.numel() / x.shape[1]
    dx = dy - _wide(of_bias / count, x) - normal * _wide(of_weight / count, x)
    dx *= _wide(deviation if weight is None else deviation * weight, x)
    found = (PlacedTensor(dx.to(x.local.dtype), _ROWS, share), of_weight, of_bias)
    return tuple(each if asked else None for each, asked in zip(found, wanted, strict=True))


def _share_of(x: object, vectors: list[Any]) -> BatchShare | None:
    """Returns the rows that images, or vectors, are spread by; None where a rule can't be used."""
    if not isinstance(x, PlacedTensor) or x.placement != _ROWS or x.ndim < 2:
        return None
    return None if any(isinstance(vector, PlacedTensor) for vector in vectors) else x.share


def _moments(x: torch.Tensor, count: float, share: BatchShare) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns mean and variance of channels over all rows, float64. All workers call it together."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    x = x.to(_kind_of(x))
    own = x.mean(axes, keepdim=True)
    about_own = torch.square(x - own).sum(axes)
    mine = torch.tensor([x.numel() / x.shape[1]], dtype=_WIDE, device=x.device)
    flat = torch.cat([mine, own.to(_WIDE).reshape(-1), about_own.to(_WIDE)])
    everyone = share.exchanges.gather(flat[None])
    counts, (means, squares) = everyone[:, :1], everyone[:, 1:].tensor_split(2, 1)
    mean = (counts * means).sum(0) / count
    return mean, (squares + counts * torch.square(means - mean)).sum(0) / count


def _follow(running: torch.Tensor | None, value: torch.Tensor, momentum: float) -> None:
    """Moves a moving statistic towards a value."""
    if running is not None:
        running.mul_(1.0 - momentum).add_(value.to(running.dtype), alpha=momentum)


def _kind_of(x: torch.Tensor) -> torch.dtype:
    """Returns the dtype of computing: 32 bits for 16."""
    return x.dtype if x.dtype.itemsize >= 4 else torch.float32


def _wide(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns a number for each channel in the shape in which images are multiplied by it."""
    return vector.reshape(1, -1, *[1] * (like.ndim - 2))
