"""Products of matrices: rows stay rows, and what is summed over rows is a sum over workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placed import PlacedTensor
from syrtos.keras.torch.partition.placements import TERM, BatchShare, Placement, RowPart
from syrtos.keras.torch.partition.rules.elementwise import part_of

_Args = tuple[Any, ...]
_Named = Mapping[str, Any]


def _rows(tensor: torch.Tensor) -> RowPart | None:
    found = tensor.placement if isinstance(tensor, PlacedTensor) else None
    return found if isinstance(found, RowPart) else None


def _gather_if_placed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.whole() if isinstance(tensor, PlacedTensor) else tensor


def _factors(
    one: torch.Tensor, other: torch.Tensor
) -> tuple[Any, Any, Placement, BatchShare] | None:
    """Returns this worker's parts of two factors, and the placement of their product.

    The last two dimensions are those of matrices; dimensions before them are alike in both.
    """
    last = one.ndim - 1
    for lead, of_first in ((one, True), (other, False)):
        rows = _rows(lead)
        if rows is None:
            continue
        assert isinstance(lead, PlacedTensor)
        share = lead.share
        if rows.dim < last - 1:  # a batch of matrices
            parts = part_of(one, rows, share), part_of(other, rows, share)
            placement: Placement = rows
        elif rows.dim == (last if of_first else last - 1):  # summed over
            parts = (
                part_of(one, RowPart(last, rows.each), share),
                part_of(other, RowPart(last - 1, rows.each), share),
            )
            placement = TERM
        else:
            parts = (
                (lead.local, _gather_if_placed(other))
                if of_first
                else (_gather_if_placed(one), lead.local)
            )
            placement = rows
        mine, its = parts
        return None if mine is None or its is None else (mine, its, placement, share)
    for lead, factor in ((one, other), (other, one)):
        if (
            isinstance(lead, PlacedTensor)
            and lead.placement is TERM
            and not isinstance(factor, PlacedTensor)
        ):
            is_first = lead is one
            mine, its = (lead.local, factor) if is_first else (factor, lead.local)
            return mine, its, TERM, lead.share
    return None


@table.rule("mm", "bmm", "mv", "dot")
def product(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Multiplies matrices, or batches of them."""
    one, other = args
    if func._schema.name in ("aten::mv", "aten::dot") or kwargs:
        return _with_vector(func, one, other) if not kwargs else NotImplemented
    found = _factors(one, other)
    if found is None:
        return NotImplemented
    mine, its, placement, share = found
    return PlacedTensor(func(mine, its), placement, share)


def _with_vector(func: Any, one: torch.Tensor, vector: torch.Tensor) -> Any:
    rows, share = _rows(one), getattr(one, "share", None) or getattr(vector, "share", None)
    if rows is not None and rows.dim == 0 and one.ndim == 2:
        assert isinstance(one, PlacedTensor)
        return PlacedTensor(func(one.local, _gather_if_placed(vector)), rows, one.share)
    rows = rows or _rows(vector)
    if rows is None or share is None:
        return NotImplemented
    mine = part_of(one, RowPart(one.ndim - 1, rows.each), share)
    its = part_of(vector, RowPart(0, rows.each), share)
    return (
        NotImplemented
        if mine is None or its is None
        else PlacedTensor(func(mine, its), TERM, share)
    )


@table.rule("addmm", "baddbmm")
def product_and_term(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Adds a term to a product whose rows are this worker's."""
    term, one, other = args
    found = _factors(one, other)
    if found is None or not isinstance(found[2], RowPart):
        return NotImplemented
    mine, its, rows, share = found
    assert isinstance(rows, RowPart)
    dim = term.ndim - (one.ndim - rows.dim)
    if isinstance(term, PlacedTensor) or (dim >= 0 and term.shape[dim] != 1):
        part = part_of(term, RowPart(dim, rows.each), share) if dim >= 0 else None
        if part is None:
            return NotImplemented
        term = part
    return PlacedTensor(func(term, mine, its, **kwargs), rows, share)
