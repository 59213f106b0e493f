"""Operations that compute each row by itself: convolutions, poolings, normalizations, attention, losses.

Their arguments and results have the rows in their first dimension, or belong to all rows. The table
says which do: ``r`` has rows, ``w`` is whole, ``p`` is a sum over rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placed import PlacedTensor
from syrtos.keras.torch.partition.placements import TERM, BatchShare, RowPart
from syrtos.keras.torch.partition.rules.elementwise import first_with_rows, part_of

# The kinds of tensors among an operation's arguments, in order, and of its results.
_BY_ROW: dict[str, tuple[str, str]] = {
    "convolution": ("rww", "r"),
    "convolution_backward": ("rrw", "rpp"),
    "max_pool2d_with_indices": ("r", "rr"),
    "max_pool2d_with_indices_backward": ("rr-----r", "r"),
    "max_pool3d_with_indices": ("r", "rr"),
    "max_pool3d_with_indices_backward": ("rr-----r", "r"),
    "avg_pool2d": ("r", "r"),
    "avg_pool2d_backward": ("rr", "r"),
    "avg_pool3d": ("r", "r"),
    "avg_pool3d_backward": ("rr", "r"),
    "_adaptive_avg_pool2d": ("r", "r"),
    "_adaptive_avg_pool2d_backward": ("rr", "r"),
    "adaptive_max_pool2d": ("r", "rr"),
    "adaptive_max_pool2d_backward": ("rrr", "r"),
    "upsample_nearest1d": ("r", "r"),
    "upsample_nearest2d": ("r", "r"),
    "upsample_bilinear2d": ("r", "r"),
    "upsample_bicubic2d": ("r", "r"),
    "upsample_linear1d": ("r", "r"),
    "_upsample_nearest_exact2d": ("r", "r"),
    "grid_sampler_2d": ("rr", "r"),
    "pixel_shuffle": ("r", "r"),
    "native_layer_norm": ("r-ww", "rrr"),
    "native_layer_norm_backward": ("rr-rrww", "rpp"),
    "_scaled_dot_product_flash_attention_for_cpu": ("rrr", "rr"),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("rrrrrr", "rrr"),
    "linalg_cross": ("rr", "r"),
}
# Those whose second dimension may be a size that one row alone has, without a first one of rows.
_RANK = {
    "convolution": 3,
    "convolution_backward": 3,
    "_adaptive_avg_pool2d": 4,
    "avg_pool2d": 4,
    "max_pool2d_with_indices": 4,
    "pixel_shuffle": 4,
    "upsample_nearest2d": 4,
}
_FIRST = RowPart(0, 1)


@table.rule(*_BY_ROW)
def by_row(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Computes this worker's rows."""
    name = func._schema.name.removeprefix("aten::")
    takes, gives = _BY_ROW[name]
    lead = first_with_rows(args)
    if lead is None or any(isinstance(v, torch.Tensor) for v in kwargs.values()):
        return NotImplemented
    rows, share = lead.placement, lead.share
    assert isinstance(rows, RowPart)
    if rows.dim != 0 or lead.ndim < _RANK.get(name, 2):
        return NotImplemented
    given: list[Any] = []
    for place, value in enumerate(args):
        kind = takes[place] if place < len(takes) else "-"
        mine = _argument(value, kind, rows, share)
        if mine is None and value is not None:
            return NotImplemented
        given.append(mine)
    if name == "native_layer_norm" and lead.ndim <= len(args[1]):
        return NotImplemented
    made = func(*given, **kwargs)
    results = made if isinstance(made, tuple) else (made,)
    placed = [
        one
        if not isinstance(one, torch.Tensor)
        else PlacedTensor(one, rows if kind == "r" else TERM, share)
        for one, kind in zip(results, _repeat_last(gives, len(results)), strict=False)
    ]
    return tuple(placed) if isinstance(made, tuple) else placed[0]


def _repeat_last(gives: str, count: int) -> str:
    return gives + gives[-1] * (count - len(gives))


def _argument(value: Any, kind: str, rows: RowPart, share: BatchShare) -> Any:
    """Returns this worker's part of an argument; None where it has not the rows, or isn't whole."""
    if not isinstance(value, torch.Tensor):
        return value
    if kind == "w":
        return value.whole() if isinstance(value, PlacedTensor) else value
    return part_of(value, rows, share) if kind == "r" else None


@table.rule("native_group_norm")
def group_norm(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Normalizes groups of channels of each row; the number of rows is an argument."""
    tensor, weight, bias, count, *rest = args
    rows = tensor.placement if isinstance(tensor, PlacedTensor) else None
    if (
        rows != _FIRST
        or count != tensor.share.total
        or any(isinstance(t, PlacedTensor) for t in (weight, bias))
    ):
        return NotImplemented
    made = func(tensor.local, weight, bias, tensor.share.count, *rest, **kwargs)
    return tuple(PlacedTensor(one, _FIRST, tensor.share) for one in made)


@table.rule("native_group_norm_backward")
def group_norm_backward(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The gradient of `group_norm`."""
    grad, tensor, mean, deviation, weight, count, *rest = args
    share = tensor.share if isinstance(tensor, PlacedTensor) else None
    if share is None or tensor.placement != _FIRST or count != share.total:
        return NotImplemented
    parts = [part_of(t, _FIRST, share) for t in (grad, tensor, mean, deviation)]
    if any(part is None for part in parts) or isinstance(weight, PlacedTensor):
        return NotImplemented
    made = func(*parts, weight, share.count, *rest, **kwargs)
    kinds = (_FIRST, TERM, TERM)
    return tuple(
        None if one is None else PlacedTensor(one, kind, share)
        for one, kind in zip(made, kinds, strict=True)
    )


# -- losses ----------------------------------------------------------------------------------------

_NONE, _MEAN, _SUM = 0, 1, 2  # ATen's numbers of reductions


_LOSSES = ("mse_loss", "binary_cross_entropy", "smooth_l1_loss", "huber_loss", "soft_margin_loss")


@table.rule(*_LOSSES, "binary_cross_entropy_with_logits")
def loss(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Adds up a loss over elements; a mean divides by the elements of the whole batch."""
    place, reduction = _reduction(func, args, kwargs)
    lead, given = _aligned_elements(args[:place], place)
    if lead is None or kwargs.keys() - {"reduction", "beta", "delta"}:
        return NotImplemented
    named = {name: value for name, value in kwargs.items() if name != "reduction"}
    made = func(*given, reduction, *args[place + 1 :], **named)
    if reduction == _NONE:
        return PlacedTensor(made, lead.placement, lead.share)
    # A sum of 16-bit numbers may be too large where their mean is not.
    mine = lead.local.numel() / lead.numel()
    return PlacedTensor(made * mine if reduction == _MEAN else made, TERM, lead.share)


@table.rule(*(f"{name}_backward" for name in _LOSSES))
def loss_backward(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The gradient of `loss`."""
    place, reduction = _reduction(func, args, kwargs)
    grad, *others = args[:place]
    lead, given = _aligned_elements(others, place - 1)
    if lead is None or kwargs.keys() - {"reduction"}:
        return NotImplemented
    mine = _gradient_of_loss(grad, reduction, lead)
    if mine is None:
        return NotImplemented
    if reduction == _MEAN:
        mine = mine / lead.numel()
    how = _NONE if reduction == _NONE else _SUM
    return PlacedTensor(func(mine, *given, how, *args[place + 1 :]), lead.placement, lead.share)


def _reduction(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the place of the reduction among an operation's arguments, and ATen's number of it."""
    place = [parameter.name for parameter in func._schema.arguments].index("reduction")
    return place, args[place] if place < len(args) else kwargs.get("reduction", _MEAN)


def _gradient_of_loss(grad: torch.Tensor, reduction: int, lead: PlacedTensor) -> Any:
    """Returns the gradient of this worker's losses, or of the reduced one; None where it has not its rows."""
    # Where it is differentiated again, autograd gives the one of a reduced loss for each element.
    if reduction == _NONE or (grad.ndim and grad.shape == lead.shape):
        assert isinstance(lead.placement, RowPart)
        return part_of(grad, lead.placement, lead.share)
    return grad.whole() if isinstance(grad, PlacedTensor) else grad


def _aligned_elements(values: Sequence[Any], count: int) -> tuple[PlacedTensor | None, list[Any]]:
    """Returns what `_align_values` does of tensors of one shape, with None for ``count`` that are left out."""
    lead, given = _align_values(values)
    # A weight may have another shape than the batch: then the mean is of the broadcast one.
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    if lead is None or any(tensor.shape != lead.local.shape for tensor in tensors):
        return None, []
    return lead, given + [None] * (count - len(given))


def _align_values(values: Sequence[Any]) -> tuple[PlacedTensor | None, list[Any]]:
    lead = first_with_rows(values)
    if lead is None:
        return None, []
    rows = lead.placement
    assert isinstance(rows, RowPart)
    given: list[Any] = []
    for value in values:
        mine = part_of(value, rows, lead.share) if isinstance(value, torch.Tensor) else value
        if mine is None and value is not None:
            return None, []
        given.append(mine)
    return lead, given


def _aligned_classes(
    likelihoods: torch.Tensor, target: torch.Tensor, weight: object
) -> tuple[PlacedTensor | None, list[Any]]:
    """Returns what `_align_values` does, where the rows come first and the weights of classes are whole."""
    lead, given = _align_values([likelihoods, target])
    is_known = likelihoods.ndim > 1 and not isinstance(weight, PlacedTensor)
    rows = None if lead is None else lead.placement
    if not is_known or not isinstance(rows, RowPart) or rows.dim != 0:
        return None, []
    return lead, given


@table.rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Takes the likelihoods of classes; a mean divides by the weights of the whole batch."""
    likelihoods, target, weight, reduction, ignored = args
    lead, given = _aligned_classes(likelihoods, target, weight)
    if lead is None or likelihoods.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    how = _NONE if reduction == _NONE else _SUM
    made, total = func(*given, weight, how, ignored)
    if reduction == _NONE:
        return PlacedTensor(made, lead.placement, lead.share), total
    made, total = lead.share.exchanges.sum([made, total])
    return (made / total if reduction == _MEAN else made), total


@table.rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The gradient of `nll_loss`."""
    grad, likelihoods, target, weight, reduction, ignored, total = args
    lead, given = _aligned_classes(likelihoods, target, weight)
    mine = None if lead is None else _gradient_of_loss(grad, reduction, lead)
    if lead is None or mine is None:
        return NotImplemented
    total = total.whole() if isinstance(total, PlacedTensor) else total
    made = func(mine, *given, weight, reduction, ignored, total)
    return PlacedTensor(made, lead.placement, lead.share)
