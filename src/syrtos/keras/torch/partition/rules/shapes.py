"""Operations that change shapes: the rows stay with their workers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from syrtos.keras.torch import torch_internals
from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placed import PlacedTensor
from syrtos.keras.torch.partition.placements import TERM, Placement, RowPart, SumTerm
from syrtos.keras.torch.partition.rules.elementwise import align_arguments, first_with_rows

_Args = tuple[Any, ...]
_Named = Mapping[str, Any]


# Takes an operation's tensor, this worker's rows of it, the other arguments and those by name.
_RowsOf = Callable[[PlacedTensor, RowPart, _Args, _Named], int | None]


def _moving_rows(keeps_sums: bool) -> Callable[[_RowsOf], table.Rule]:
    """Decorator: makes a rule of a function that returns in which dimension the rows are afterwards.

    The function returns None where the rows do not stay together. Each worker computes its part.

    Args:
        keeps_sums: whether the operation of a sum is the sum of the operation.
    """

    def decorate(rows_of: _RowsOf) -> table.Rule:
        @functools.wraps(rows_of)
        def rule(func: Any, args: _Args, kwargs: _Named) -> Any:
            tensor, *rest = args
            placement: Placement = tensor.placement
            if isinstance(placement, RowPart):
                dim = rows_of(tensor, placement, tuple(rest), kwargs)
                if dim is None:
                    return NotImplemented
                placement = RowPart(dim, placement.each)
            elif placement is not TERM or not keeps_sums:
                return NotImplemented
            made = func(tensor.local, *rest, **kwargs)
            if isinstance(made, tuple | list):
                return type(made)(PlacedTensor(one, placement, tensor.share) for one in made)
            return PlacedTensor.from_part(
                made, placement, tensor, lambda t: func(t, *rest, **kwargs)
            )

        return rule

    return decorate


@table.rule("view", "_unsafe_view", "reshape", "_reshape_alias")
def view(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Reshapes this worker's rows, where they stay one range of a dimension."""
    tensor, size = args[0], args[1]
    if not isinstance(size, list | tuple):  # a view by dtype
        return NotImplemented
    rows = tensor.placement
    wanted = _resolved(size, tensor.numel())
    if rows is TERM:
        made = tensor.local.reshape(wanted)
        return PlacedTensor.from_part(made, TERM, tensor, lambda t: t.reshape(wanted))
    if not isinstance(rows, RowPart):
        return NotImplemented
    found = _rows_of_view(tensor.shape, wanted, rows, tensor.share.total)
    if found is None:
        return NotImplemented
    mine = list(wanted)
    mine[found.dim] = tensor.share.count * found.each
    made = tensor.local.reshape(mine)
    return PlacedTensor.from_part(made, found, tensor, lambda t: t.reshape(wanted))


def _resolved(size: Sequence[int], numel: int) -> list[int]:
    known = math.prod(n for n in size if n != -1)
    return [numel // known if n == -1 and known else n for n in size]


def _rows_of_view(
    old: Sequence[int], new: Sequence[int], rows: RowPart, total: int
) -> RowPart | None:
    """Returns where the rows are in a tensor of another shape; None where they are no range of one dimension."""
    before = math.prod(old[: rows.dim])
    inside = rows.each * math.prod(old[rows.dim + 1 :])  # elements of a row
    prefix = 1
    for dim, size in enumerate(new):
        if prefix == before and size and size % total == 0 and inside % (size // total) == 0:
            return RowPart(dim, size // total)
        prefix *= size
        if prefix > before:
            return None
    return None


@table.rule("permute")
@_moving_rows(keeps_sums=True)
def permute(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Permutes dimensions."""
    return [d % tensor.ndim for d in args[0]].index(rows.dim)


@table.rule("transpose.int", "t")
@_moving_rows(keeps_sums=True)
def transpose(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Swaps two dimensions."""
    if tensor.ndim < 2:
        return None
    one, other = (d % tensor.ndim for d in args) if args else (0, 1)
    return {one: other, other: one}.get(rows.dim, rows.dim)


@table.rule("unsqueeze")
@_moving_rows(keeps_sums=True)
def unsqueeze(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Adds a dimension."""
    return rows.dim + (args[0] % (tensor.ndim + 1) <= rows.dim)


@table.rule("squeeze_", "unsqueeze_", "t_", "transpose_")
def view_in_place(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Gives a tensor the sizes of its view, as `torch.func.vmap` does to products."""
    tensor, *others = args
    # A view of a whole tensor writes back to that one, in its shape.
    if not isinstance(tensor, PlacedTensor) or not isinstance(tensor.placement, RowPart | SumTerm):
        return NotImplemented
    view = getattr(torch, func._schema.name.removeprefix("aten::").rstrip("_"))
    found = view(tensor, *others, **kwargs)
    if not isinstance(found, PlacedTensor) or not isinstance(found.placement, RowPart | SumTerm):
        return NotImplemented
    tensor.take_view(found)
    torch_internals.change_sizes(func, tensor, others)
    return tensor


@table.rule("squeeze")
def squeeze(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Removes dimensions of size 1, of which the whole tensor's shape says which they are."""
    tensor = args[0]
    if tensor.placement is TERM:
        made = func(tensor.local, *args[1:], **kwargs)
        return PlacedTensor.from_part(made, TERM, tensor, lambda t: func(t, *args[1:], **kwargs))
    if not isinstance(tensor.placement, RowPart):
        return NotImplemented
    named = args[1] if len(args) > 1 else list(range(tensor.ndim))
    named = named if isinstance(named, list | tuple) else [named]
    gone = [d % tensor.ndim for d in named if tensor.shape[d] == 1]
    kept = [n for d, n in enumerate(tensor.local.shape) if d not in gone]
    dim = tensor.placement.dim - sum(d < tensor.placement.dim for d in gone)
    made = tensor.local.squeeze(gone) if gone else tensor.local.view(kept)
    return PlacedTensor(made, RowPart(dim, tensor.placement.each), tensor.share)


@table.rule("expand")
def expand(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Repeats entries of dimensions of size 1, without a copy."""
    tensor, size = args[0], list(args[1])
    # A sum is added up before it grows.
    if not isinstance(tensor.placement, RowPart):
        return NotImplemented
    dim = len(size) - tensor.ndim + tensor.placement.dim
    size[dim] = -1
    made = func(tensor.local, size, *args[2:], **kwargs)
    return PlacedTensor(made, RowPart(dim, tensor.placement.each), tensor.share)


@table.rule("slice.Tensor")
@_moving_rows(keeps_sums=True)
def slice_(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Slices another dimension than the rows, or takes all of these."""
    dim, start, stop, step = _add_defaults(args, (0, None, None, 1))
    size = tensor.shape[rows.dim]
    takes_all = (start or 0) in (0, -size) and (stop is None or stop >= size) and step == 1
    return rows.dim if takes_all or dim % tensor.ndim != rows.dim else None


def _add_defaults(args: _Args, defaults: Sequence[Any]) -> list[Any]:
    return [*args, *defaults[len(args) :]]


@table.rule("select.int")
@_moving_rows(keeps_sums=True)
def select(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Takes one entry of another dimension than the rows."""
    dim = args[0] % tensor.ndim
    return None if dim == rows.dim else rows.dim - (dim < rows.dim)


@table.rule(
    "split.Tensor", "split_with_sizes", "chunk", "unsafe_split.Tensor", "unsafe_split_with_sizes", "unsafe_chunk",
)  # fmt: skip
@_moving_rows(keeps_sums=True)
def split(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Splits another dimension than the rows."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return None if dim % tensor.ndim == rows.dim else rows.dim


@table.rule("unbind.int")
@_moving_rows(keeps_sums=False)
def unbind(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Takes the entries of another dimension than the rows."""
    dim = (args[0] if args else kwargs.get("dim", 0)) % tensor.ndim
    return None if dim == rows.dim else rows.dim - (dim < rows.dim)


@table.rule("repeat")
@_moving_rows(keeps_sums=False)
def repeat(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Repeats along other dimensions than the rows."""
    times = args[0]
    dim = len(times) - tensor.ndim + rows.dim
    return dim if times[dim] == 1 else None


@table.rule("constant_pad_nd")
@_moving_rows(keeps_sums=False)
def pad(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Pads other dimensions than the rows."""
    place = 2 * (tensor.ndim - 1 - rows.dim)
    return None if any(args[0][place : place + 2]) else rows.dim


@table.rule("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
@_moving_rows(keeps_sums=False)
def pad_within_rows(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Pads the last dimensions."""
    return rows.dim if rows.dim < tensor.ndim - len(args[0]) // 2 else None


@table.rule("tril", "triu")
@_moving_rows(keeps_sums=False)
def within_matrices(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Acts on the last two dimensions of tensors that have rows in another one."""
    return rows.dim if rows.dim < tensor.ndim - 2 else None


@table.rule("diagonal")
@_moving_rows(keeps_sums=False)
def diagonal(tensor: PlacedTensor, rows: RowPart, args: _Args, kwargs: _Named) -> int | None:
    """Takes a diagonal of the last two dimensions of tensors that have rows in another one."""
    _, one, other = _add_defaults(args, (0, 0, 1))
    of_last = {one % tensor.ndim, other % tensor.ndim} == {tensor.ndim - 2, tensor.ndim - 1}
    return rows.dim if of_last and rows.dim < tensor.ndim - 2 else None


@table.rule("cat", "stack")
def join(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Joins tensors that have the same rows along another dimension."""
    tensors = args[0]
    lead = first_with_rows(tensors)
    if lead is None:
        sums = [t for t in tensors if isinstance(t, PlacedTensor) and t.placement is TERM]
        if len(sums) < len(tensors) or len({t.dtype for t in sums}) > 1:
            return NotImplemented
        made = func([t.local for t in sums], *args[1:], **kwargs)
        return PlacedTensor(made, TERM, sums[0].share)
    stacks = func._schema.name == "aten::stack"
    found = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    dim = found % (lead.ndim + stacks)
    rows = lead.placement
    assert isinstance(rows, RowPart)
    # An empty vector may stand among them, which `cat` leaves out.
    if (dim == rows.dim and not stacks) or any(t.ndim != lead.ndim for t in tensors):
        return NotImplemented
    given = align_arguments(tensors, lead)
    if given is None or any(t.shape[rows.dim] != lead.local.shape[rows.dim] for t in given):
        return NotImplemented
    made = func(given, *args[1:], **kwargs)
    return PlacedTensor(
        made, RowPart(rows.dim + (stacks and dim <= rows.dim), rows.each), lead.share
    )


@table.rule("select_backward", "slice_backward")
def view_backward(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Puts a gradient into zeros of the shape that another dimension than the rows was taken of."""
    grad, sizes, dim = args[0], list(args[1]), args[2]
    rows = grad.placement
    name = func._schema.name
    if not isinstance(rows, RowPart):
        return NotImplemented
    dim %= len(sizes)
    at = rows.dim + (name == "aten::select_backward" and dim <= rows.dim)
    size = grad.share.total * rows.each
    if sizes[at] != size or (dim == at):
        return NotImplemented
    sizes[at] = grad.local.shape[rows.dim]
    made = func(grad.local, sizes, *args[2:], **kwargs)
    return PlacedTensor(made, RowPart(at, rows.each), grad.share)


@table.rule("view_as_real", "view_as_complex")
@_moving_rows(keeps_sums=True)
def numbers_as_pairs(tensor: PlacedTensor, rows: RowPart, rest: _Args, named: _Named) -> int | None:
    """Reads complex numbers as pairs in a last dimension of their own, or such pairs as numbers."""
    return None if rows.dim == tensor.ndim - 1 and not tensor.is_complex() else rows.dim


@table.rule("_fft_r2c", "_fft_c2c", "_fft_c2r")
@_moving_rows(keeps_sums=True)
def transform(tensor: PlacedTensor, rows: RowPart, rest: _Args, named: _Named) -> int | None:
    """Transforms each row by itself; None where the transform is along the rows."""
    return None if rows.dim in {dim % tensor.ndim for dim in rest[0]} else rows.dim
