"""Random draws: every worker draws for the whole batch, as one process does, and keeps its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placed import PlacedTensor, cut_like
from syrtos.keras.torch.partition.placements import RowPart


@table.rule("rand_like", "randn_like", "randint_like", "bernoulli.p")
def drawn_like(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Draws numbers of the shape of a tensor, whose values don't matter."""
    tensor = args[0]
    whole = func(_empty_like(tensor), *args[1:], **kwargs)
    return cut_like(whole, tensor.share, tensor.placement)


@table.rule(
    "bernoulli_.float",
    "uniform_",
    "normal_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "cauchy_",
    "random_",
)
def filled_with_draws(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Overwrites a tensor by draws."""
    tensor = args[0]
    if not isinstance(tensor, PlacedTensor) or not isinstance(tensor.placement, RowPart):
        return NotImplemented
    whole = _empty_like(tensor)
    func(whole, *args[1:], **kwargs)
    tensor.write(whole)
    return tensor


def _empty_like(tensor: PlacedTensor) -> torch.Tensor:
    """Returns memory of the shape, dtype and layout of the whole tensor."""
    # The order of the draws is that of the memory.
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


@table.rule("native_dropout")
def dropout(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Scales by what one process draws for the whole tensor."""
    tensor, *rest = args
    rows = tensor.placement
    if not isinstance(rows, RowPart):
        return NotImplemented
    scales, mask = func(_empty_like(tensor).fill_(1), *rest, **kwargs)
    share = tensor.share
    made = PlacedTensor(tensor.local * share.cut(scales, rows), rows, share)
    return made, cut_like(mask, share, rows)
