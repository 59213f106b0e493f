"""Lookups: rows of tables by numbers, entries of rows, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placed import PlacedTensor
from syrtos.keras.torch.partition.placements import TERM, RowPart
from syrtos.keras.torch.partition.rules.elementwise import part_of

_Args = tuple[Any, ...]
_Named = Mapping[str, Any]


def _rows(value: object) -> RowPart | None:
    found = value.placement if isinstance(value, PlacedTensor) else None
    return found if isinstance(found, RowPart) else None


@table.rule("embedding")
def embedding(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Looks up this worker's numbers."""
    weights, numbers, *rest = args
    rows = _rows(numbers)
    if rows is None or isinstance(weights, PlacedTensor):
        return NotImplemented
    return PlacedTensor(func(weights, numbers.local, *rest, **kwargs), rows, numbers.share)


@table.rule("embedding_dense_backward")
def embedding_backward(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Adds up gradients of looked up rows."""
    grad, numbers, count, padding, by_frequency = args
    lead = grad if _rows(grad) is not None else numbers
    rows = _rows(lead)
    if rows is None or by_frequency:
        return NotImplemented
    mine, its = part_of(grad, rows, lead.share), part_of(numbers, rows, lead.share)
    if mine is None or its is None:
        return NotImplemented
    return PlacedTensor(func(mine, its, count, padding, False), TERM, lead.share)


@table.rule("index_select")
def index_select(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Takes entries of another dimension than the rows, or by this worker's numbers."""
    tensor, dim, numbers = args
    rows, by = _rows(tensor), _rows(numbers)
    if rows is not None and dim % tensor.ndim != rows.dim and not isinstance(numbers, PlacedTensor):
        return PlacedTensor(func(tensor.local, dim, numbers), rows, tensor.share)
    if by is not None and not isinstance(tensor, PlacedTensor):
        return PlacedTensor(
            func(tensor, dim, numbers.local), RowPart(dim % tensor.ndim, by.each), numbers.share
        )
    return NotImplemented


@table.rule(
    "gather",
    "scatter.src",
    "scatter.value",
    "scatter_add",
    "scatter_reduce.two",
    "take_along_dim",
    "masked_scatter",
)
def within_rows(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Takes or puts entries along another dimension than the rows."""
    tensor, dim, *rest = args
    lead = next((t for t in args if _rows(t) is not None), None)
    if lead is None or not isinstance(dim, int) or dim % tensor.ndim == _rows(lead).dim:  # pyright: ignore
        return NotImplemented
    rows, share = lead.placement, lead.share
    given: list[Any] = []
    for value in (tensor, dim, *rest):
        mine = value
        if isinstance(value, torch.Tensor):
            mine = part_of(value, rows, share)
            if mine is None:
                return NotImplemented
        given.append(mine)
    return PlacedTensor(func(*given, **kwargs), rows, share)


@table.rule("index.Tensor")
def index(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Takes entries by tensors of numbers: of a whole table, or of each row one."""
    tensor, numbers = args
    given = [n for n in numbers if n is not None]
    if any(n.dtype in (torch.bool, torch.uint8) for n in given) or not given:
        return NotImplemented
    if not isinstance(tensor, PlacedTensor):
        first = numbers[0]
        if len(numbers) != 1 or _rows(first) is None:
            return NotImplemented
        return PlacedTensor(func(tensor, [first.local]), first.placement, first.share)
    rows = _rows(tensor)
    if rows is None or rows.dim != 0:
        return NotImplemented
    if numbers[0] is None:
        places = [i for i, n in enumerate(numbers) if n is not None]
        together = places == list(range(places[0], places[-1] + 1))
        if not together or any(isinstance(n, PlacedTensor) for n in given):
            return NotImplemented
        return PlacedTensor(func(tensor.local, numbers), rows, tensor.share)
    return _entry_of_each_row(func, tensor, numbers)


def _entry_of_each_row(func: Any, tensor: PlacedTensor, numbers: Any) -> Any:
    """Takes an entry of each row, as in `x[torch.arange(len(x)), labels]`."""
    order, *others = numbers
    total, share = tensor.shape[0], tensor.share
    rows = _rows(tensor)
    if (
        rows is None
        or isinstance(order, PlacedTensor)
        or order.shape != (total,)
        or any(n is None or n.shape != (total,) for n in others)
    ):
        return NotImplemented
    if not torch.equal(order, torch.arange(total, device=order.device, dtype=order.dtype)):
        return NotImplemented
    mine = [
        n.local
        if _rows(n) == rows
        else share.cut(n.whole() if isinstance(n, PlacedTensor) else n, rows)
        for n in others
    ]
    made = func(tensor.local, [torch.arange(tensor.local.shape[0], device=order.device), *mine])
    return PlacedTensor(made, rows, share)
