"""Operations in which each element of a result comes from one element of each argument.

Their rows are those of their arguments. Linear ones keep sums unreduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placed import PlacedTensor, strides_with
from syrtos.keras.torch.partition.placements import TERM, BatchShare, RowPart

_SCALED = ("aten::mul", "aten::mul_")
_DIVIDED = ("aten::div", "aten::div_")
_ADDED = ("aten::add", "aten::add_", "aten::sub", "aten::sub_")
_NEGATED = ("aten::neg", "aten::neg_")


@table.rule_where(table.is_pointwise)
def elementwise(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Computes on this worker's rows; arguments that are whole, and have the rows, are cut."""
    if any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return NotImplemented
    in_place = func._schema.is_mutable
    args = args if in_place else tuple(map(_known_or_self, args))
    sums = [t for t in args if isinstance(t, PlacedTensor) and t.placement is TERM]
    if sums and _is_linear(func, args, sums):
        made = func(*(t.local if isinstance(t, PlacedTensor) else t for t in args), **kwargs)
        if not in_place:
            return PlacedTensor(made, TERM, sums[0].share)
        if func._schema.name == "aten::copy_":  # as a gradient is, into memory of its own
            sums[0].rounded_as = sums[1].rounded_as
        sums[0].was_written()
        return sums[0]
    if not any(isinstance(t, PlacedTensor) for t in args):
        return func(*args, **kwargs)
    lead = args[0] if in_place else _lead(args)
    if not isinstance(lead, PlacedTensor) or not isinstance(lead.placement, RowPart):
        return NotImplemented
    given = align_arguments(args, lead)
    if given is None:
        return NotImplemented
    made = func(*given, **kwargs)
    if in_place:
        lead.was_written()
        return lead
    rows = lead.placement
    dim = made.ndim - lead.ndim + rows.dim
    return PlacedTensor(made, RowPart(dim, rows.each), lead.share)


@table.rule("_conj", "_neg_view")
def conjugate(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Computes the conjugate, or the negative, of this worker's part.

    One process has a view that is marked as conjugated. Below `__torch_dispatch__` torch does not
    look at the mark.
    """
    (tensor,) = args
    compute = torch.conj_physical if func._schema.name == "aten::_conj" else torch.neg
    found = PlacedTensor.from_part(compute(tensor.local), tensor.placement, tensor, compute)
    tensor.share.note_copy(tensor.local, found.local)
    return found


@table.rule(
    "copy_", "elu_backward", "softplus_backward", "leaky_relu_backward", "hardtanh_backward", "hardswish", "hardswish_backward",
    "hardsigmoid_backward", "mish_backward", "log_sigmoid_backward", "softshrink_backward", "hardshrink_backward", "masked_fill_", "fill_", "zero_",
    "rsub", "isclose", "threshold_", "complex", "polar",
)  # fmt: skip
def compute_elements(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Computes on this worker's rows, though torch does not say that elements are by themselves."""
    return elementwise(func, args, kwargs)


@table.rule(
    "_to_copy",
    "clone",
    "detach",
    "alias",
    "lift_fresh",
    "detach_",
    "contiguous",
    "native_dropout_backward",
)
def keep_part(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Computes on this worker's part, of whatever kind that is."""
    (tensor, *rest) = args
    if not isinstance(tensor, PlacedTensor):
        return NotImplemented
    if tensor.placement is TERM:
        dtype = kwargs.get("dtype")
        # A sum is rounded once, and a truth value is no sum.
        narrows = dtype is not None and not (
            dtype.is_floating_point
            and tensor.dtype.is_floating_point
            and torch.finfo(dtype).bits >= torch.finfo(tensor.dtype).bits
        )
        if narrows or any(isinstance(value, torch.Tensor) for value in rest):
            return NotImplemented
    elif not isinstance(tensor.placement, RowPart):
        return NotImplemented
    given = (
        align_arguments(args, tensor)
        if any(isinstance(t, torch.Tensor) for t in rest)
        else [tensor.local, *rest]
    )
    if given is None:
        return NotImplemented
    made = func(*given, **kwargs)
    if made is tensor.local:
        return tensor
    if len(rest) > 1 or any(isinstance(t, torch.Tensor) for t in rest):
        return PlacedTensor(made, tensor.placement, tensor.share)
    found = PlacedTensor.from_part(
        made, tensor.placement, tensor, lambda t: func(t, *rest, **kwargs)
    )
    if tensor.placement is TERM and made.dtype is not tensor.dtype and tensor.dtype in _NARROW:
        found.rounded_as = tensor.dtype
    return found


@table.rule("zeros_like", "ones_like", "full_like", "empty_like")
def fill_rows(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Makes a tensor of this worker's rows; one like a sum is whole."""
    tensor = args[0]
    if isinstance(tensor.placement, RowPart):
        made = func(tensor.local, *args[1:], **kwargs)
        return PlacedTensor(made, tensor.placement, tensor.share)
    return func(tensor.local, *args[1:], **kwargs)


@table.rule("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")
def new(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Makes a tensor of the dtype of this one: of its rows if it has its shape, else a whole one."""
    tensor, size, *rest = args
    is_empty = func._schema.name == "aten::new_empty_strided"
    if tensor.placement is TERM and is_empty and tuple(size) == tuple(tensor.shape):
        return PlacedTensor(func(tensor.local, size, *rest, **kwargs), TERM, tensor.share)
    if not isinstance(tensor.placement, RowPart) or tuple(size) != tuple(tensor.shape):
        return func(tensor.local, size, *rest, **kwargs)
    if is_empty:
        strides = _strides_of_part(tensor, rest[0])
        if strides is None:
            return func(tensor.local, size, *rest, **kwargs)
        rest = [strides]
    made = func(tensor.local, tensor.local.shape, *rest, **kwargs)
    return PlacedTensor(made, tensor.placement, tensor.share)


def _strides_of_part(tensor: PlacedTensor, asked: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the strides of a worker's rows in memory of such an order; None for one with gaps."""
    rows = tensor.placement
    assert isinstance(rows, RowPart)
    dense = 1
    for dim in sorted(range(tensor.ndim), key=lambda dim: asked[dim]):
        if tensor.shape[dim] > 1:
            if asked[dim] != dense:
                return None
            dense *= tensor.shape[dim]
    return strides_with(tensor.shape, asked, rows.dim, tensor.local.shape[rows.dim])


# Sums of these dtypes, which are widened before they are added up, are rounded as one process rounds
# them, or exceed their range.
_NARROW = (torch.float16, torch.bfloat16)


def _known_or_self(value: Any) -> Any:
    """Returns the whole of a sum that was added up before; any other value itself."""
    if isinstance(value, PlacedTensor) and value.placement is TERM:
        return value if value.known_whole is None else value.known_whole
    return value


def _lead(args: Sequence[Any]) -> PlacedTensor | None:
    """Returns the tensor whose rows the result has: the one of the most elements."""
    found = [t for t in args if isinstance(t, PlacedTensor) and isinstance(t.placement, RowPart)]
    return (
        # Of whole ones: parts of two batches may be larger on one worker, and smaller on another.
        max(found, key=lambda t: t.numel()) if len(found) > 1 else found[0] if found else None
    )


def _is_linear(func: Any, args: Sequence[Any], sums: Sequence[PlacedTensor]) -> bool:
    """Returns whether the operation of sums is the sum of the operation."""
    name = func._schema.name
    if func._schema.is_mutable and args[0] is not sums[0]:
        return False
    if name in _NEGATED:
        return True
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if name in _ADDED or name == "aten::copy_":
        # Of other shapes or dtypes the result is not one of the sums' form.
        kinds = {(tuple(t.shape), t.dtype) for t in tensors}
        return len(tensors) == len(sums) == 2 and len(kinds) == 1
    if name in _SCALED or (name in _DIVIDED and func._overloadname in ("Tensor", "Scalar")):
        scaled, *factors = args if args[0] is sums[0] else reversed(args[:2])
        is_first = args[0] is sums[0]
        # A sum is added up before it grows.
        are_whole = all(
            not isinstance(f, PlacedTensor)
            and (not isinstance(f, torch.Tensor) or f.numel() <= scaled.numel())
            for f in factors
        )
        is_scaled = is_first or name == "aten::mul"
        return len(sums) == 1 and are_whole and is_scaled and scaled.is_floating_point()
    return False


def align_arguments(args: Sequence[Any], lead: PlacedTensor) -> list[Any] | None:
    """Returns arguments that broadcast with this worker's rows of ``lead``; None where they don't.

    Whole tensors that have the rows are cut, and those that have other rows become whole.
    """
    rows, share = lead.placement, lead.share
    assert isinstance(rows, RowPart)
    from_end = lead.ndim - rows.dim
    size = share.total * rows.each
    given: list[Any] = []
    for value in args:
        if not isinstance(value, torch.Tensor):
            given.append(value)
            continue
        dim = value.ndim - from_end
        mine: torch.Tensor = value
        if isinstance(value, PlacedTensor):
            if value.placement == RowPart(dim, rows.each) and share.is_like(value.share):
                given.append(value.local)
                continue
            mine = value.whole()
        if dim >= 0 and mine.shape[dim] != 1:
            if mine.shape[dim] != size:
                return None
            mine = share.cut(mine, RowPart(dim, rows.each))
        given.append(mine)
    return given


def part_of(value: torch.Tensor, rows: RowPart, share: BatchShare) -> torch.Tensor | None:
    """Returns this worker's rows of a tensor; None where the tensor has not these rows."""
    if isinstance(value, PlacedTensor):
        if value.placement == rows and share.is_like(value.share):
            return value.local
        value = value.whole()
    has_rows = value.ndim > rows.dim and value.shape[rows.dim] == share.total * rows.each
    return share.cut(value, rows) if has_rows else None


def first_with_rows(values: Sequence[Any]) -> PlacedTensor | None:
    """Returns the first tensor of which workers have rows, or None."""
    return next(
        (t for t in values if isinstance(t, PlacedTensor) and isinstance(t.placement, RowPart)),
        None,
    )
