"""Operations that change shapes: the rows stay with their workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placed import PlacedTensor
from syrtos.keras.torch.partition.placements import TERM, RowPart
from syrtos.keras.torch.partition.rules.elementwise import aligned

_Args = tuple[Any, ...]
_Named = Mapping[str, Any]


def _with_rows_at(func: Any, args: _Args, kwargs: _Named, dim: int, each: int | None = None) -> Any:
    """Computes on this worker's part; the rows are in the dimension ``dim`` then."""
    tensor = args[0]
    made = func(tensor.local, *args[1:], **kwargs)
    rows = RowPart(dim, each or tensor.placement.each)
    if isinstance(made, tuple | list):
        return type(made)(PlacedTensor(one, rows, tensor.share) for one in made)
    return PlacedTensor.derived(made, rows, tensor, lambda t: func(t, *args[1:], **kwargs))


def _of_sum(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Computes on this worker's term of a sum, which stays one."""
    tensor = args[0]
    made = func(tensor.local, *args[1:], **kwargs)
    if isinstance(made, tuple | list):
        return type(made)(PlacedTensor(one, TERM, tensor.share) for one in made)
    return PlacedTensor.derived(made, TERM, tensor, lambda t: func(t, *args[1:], **kwargs))


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
        return PlacedTensor.derived(made, TERM, tensor, lambda t: t.reshape(wanted))
    if not isinstance(rows, RowPart):
        return NotImplemented
    found = _rows_of_view(tensor.shape, wanted, rows, tensor.share.total)
    if found is None:
        return NotImplemented
    mine = list(wanted)
    mine[found.dim] = tensor.share.count * found.each
    made = tensor.local.reshape(mine)
    return PlacedTensor.derived(made, found, tensor, lambda t: t.reshape(wanted))


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
def permute(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Permutes dimensions."""
    tensor, dims = args[0], args[1]
    if tensor.placement is TERM:
        return _of_sum(func, args, kwargs)
    if not isinstance(tensor.placement, RowPart):
        return NotImplemented
    return _with_rows_at(
        func, args, kwargs, [d % tensor.ndim for d in dims].index(tensor.placement.dim)
    )


@table.rule("transpose.int", "t")
def transpose(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Swaps two dimensions."""
    tensor = args[0]
    if tensor.placement is TERM:
        return _of_sum(func, args, kwargs)
    if not isinstance(tensor.placement, RowPart) or tensor.ndim < 2:
        return NotImplemented
    one, other = (d % tensor.ndim for d in args[1:3]) if len(args) > 2 else (0, 1)
    dim = tensor.placement.dim
    return _with_rows_at(func, args, kwargs, other if dim == one else one if dim == other else dim)


@table.rule("unsqueeze")
def unsqueeze(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Adds a dimension."""
    tensor = args[0]
    if tensor.placement is TERM:
        return _of_sum(func, args, kwargs)
    if not isinstance(tensor.placement, RowPart):
        return NotImplemented
    dim = tensor.placement.dim
    return _with_rows_at(func, args, kwargs, dim + (args[1] % (tensor.ndim + 1) <= dim))


@table.rule("squeeze")
def squeeze(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Removes dimensions of size 1, of which the whole tensor's shape says which they are."""
    tensor = args[0]
    if tensor.placement is TERM:
        return _of_sum(func, args, kwargs)
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
def slice_(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Slices another dimension than the rows, or takes all of these."""
    tensor, dim, start, stop, step = _filled(args, (None, 0, None, None, 1))
    if tensor.placement is TERM:
        return _of_sum(func, args, kwargs)
    rows = tensor.placement
    if not isinstance(rows, RowPart):
        return NotImplemented
    size = tensor.shape[rows.dim]
    if dim % tensor.ndim == rows.dim:
        is_all = (start or 0) in (0, -size) and (stop is None or stop >= size) and step == 1
        return (
            PlacedTensor(torch.ops.aten.alias(tensor.local), rows, tensor.share)
            if is_all
            else NotImplemented
        )
    return _with_rows_at(func, args, kwargs, rows.dim)


def _filled(args: _Args, defaults: Sequence[Any]) -> list[Any]:
    return [*args, *defaults[len(args) :]]


@table.rule("select.int")
def select(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Takes one entry of another dimension than the rows."""
    tensor, dim = args[0], args[1]
    if tensor.placement is TERM:
        return _of_sum(func, args, kwargs)
    rows = tensor.placement
    if not isinstance(rows, RowPart) or dim % tensor.ndim == rows.dim:
        return NotImplemented
    return _with_rows_at(func, args, kwargs, rows.dim - (dim % tensor.ndim < rows.dim))


@table.rule(
    "split.Tensor",
    "split_with_sizes",
    "chunk",
    "unsafe_split.Tensor",
    "unsafe_split_with_sizes",
    "unsafe_chunk",
)
def split(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Splits another dimension than the rows."""
    tensor = args[0]
    dim = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % tensor.ndim
    if tensor.placement is TERM:
        return _of_sum(func, args, kwargs)
    if not isinstance(tensor.placement, RowPart) or dim == tensor.placement.dim:
        return NotImplemented
    return _with_rows_at(func, args, kwargs, tensor.placement.dim)


@table.rule("unbind.int")
def unbind(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Takes the entries of another dimension than the rows."""
    tensor = args[0]
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % tensor.ndim
    rows = tensor.placement
    if not isinstance(rows, RowPart) or dim == rows.dim:
        return NotImplemented
    return _with_rows_at(func, args, kwargs, rows.dim - (dim < rows.dim))


@table.rule("repeat")
def repeat(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Repeats along other dimensions than the rows."""
    tensor, times = args[0], args[1]
    rows = tensor.placement
    if not isinstance(rows, RowPart):
        return NotImplemented
    dim = len(times) - tensor.ndim + rows.dim
    return _with_rows_at(func, args, kwargs, dim) if times[dim] == 1 else NotImplemented


@table.rule("constant_pad_nd")
def pad(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Pads other dimensions than the rows."""
    tensor, amounts = args[0], args[1]
    rows = tensor.placement
    if not isinstance(rows, RowPart):
        return NotImplemented
    place = 2 * (tensor.ndim - 1 - rows.dim)
    return (
        NotImplemented
        if any(amounts[place : place + 2])
        else _with_rows_at(func, args, kwargs, rows.dim)
    )


@table.rule("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
def pad_within_rows(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Pads the last dimensions."""
    tensor = args[0]
    rows = tensor.placement
    if not isinstance(rows, RowPart) or rows.dim >= tensor.ndim - len(args[1]) // 2:
        return NotImplemented
    return _with_rows_at(func, args, kwargs, rows.dim)


@table.rule("tril", "triu", "diagonal")
def within_matrices(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Acts on the last two dimensions of tensors that have rows in another one."""
    tensor = args[0]
    rows = tensor.placement
    if not isinstance(rows, RowPart) or tensor.ndim < 3 or rows.dim >= tensor.ndim - 2:
        return NotImplemented
    if func._schema.name == "aten::diagonal":
        _, _, one, other = _filled(args, (None, 0, 0, 1))
        if {one % tensor.ndim, other % tensor.ndim} != {tensor.ndim - 2, tensor.ndim - 1}:
            return NotImplemented
    return _with_rows_at(func, args, kwargs, rows.dim)


@table.rule("cat", "stack")
def join(func: Any, args: _Args, kwargs: _Named) -> Any:
    """Joins tensors that have the same rows along another dimension."""
    tensors = args[0]
    lead = next(
        (t for t in tensors if isinstance(t, PlacedTensor) and isinstance(t.placement, RowPart)),
        None,
    )
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
    given = aligned(tensors, lead)
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
    if not isinstance(rows, RowPart) or name not in (
        "aten::select_backward",
        "aten::slice_backward",
    ):
        return NotImplemented
    dim %= len(sizes)
    at = rows.dim + (name == "aten::select_backward" and dim <= rows.dim)
    size = grad.share.total * rows.each
    if sizes[at] != size or (dim == at):
        return NotImplemented
    sizes[at] = grad.local.shape[rows.dim]
    made = func(grad.local, sizes, *args[2:], **kwargs)
    return PlacedTensor(made, RowPart(at, rows.each), grad.share)
