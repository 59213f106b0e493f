"""Operations along dimensions: over others than the rows each worker computes them on its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placed import PlacedTensor
from syrtos.keras.torch.partition.placements import TERM, RowPart
from syrtos.keras.torch.partition.rules.elementwise import part_of

# Operations that remove the dimensions that they are along, unless they are told to keep them.
_ALONG = (
    "sum", "mean", "amax", "amin", "any", "all", "prod", "logsumexp", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "argmax", "argmin", "max",
    "min", "median", "nanmedian", "nansum", "count_nonzero", "norm", "aminmax", "kthvalue", "mode",
)  # fmt: skip
# Those that keep the dimension.
_KEEPING = (
    "_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "flip", "roll", "sort", "topk", "argsort", "glu",
    "_softmax_backward_data", "_log_softmax_backward_data", "unfold",
)  # fmt: skip
_KEEPDIM = "keepdim"


def _value(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """Returns an argument of an operation by its name, or its default."""
    for place, parameter in enumerate(func._schema.arguments):
        if parameter.name == name:
            return args[place] if place < len(args) else kwargs.get(name, parameter.default_value)
    return None


def _dims(found: Any, ndim: int) -> list[int]:
    """Returns dimensions as numbers from 0 on; all of them where none is named."""
    if found is None or (isinstance(found, list | tuple) and not found):
        return list(range(ndim))
    named = found if isinstance(found, list | tuple) else [found]
    return [dim % ndim for dim in named] if ndim else []


def _dim_argument(func: Any, names: Sequence[str] = ("dim", "dims", "dimension")) -> str | None:
    known = {parameter.name for parameter in func._schema.arguments}
    return next((name for name in names if name in known), None)


@table.rule(*_ALONG)
def reduce_dims(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Reduces over other dimensions than the rows locally; over rows as far as parts can be joined."""
    tensor = args[0]
    if func._schema.is_mutable or any(
        isinstance(v, torch.Tensor) for v in [*args[1:], *kwargs.values()]
    ):
        return NotImplemented
    name = func._schema.name.removeprefix("aten::")
    is_rounded_once = tensor.dtype.is_floating_point and kwargs.get("dtype") is None
    if tensor.placement is TERM and name in ("sum", "mean") and is_rounded_once:
        return PlacedTensor(func(tensor.local, *args[1:], **kwargs), TERM, tensor.share)
    rows = tensor.placement
    if not isinstance(rows, RowPart):
        return NotImplemented
    argument = _dim_argument(func)
    named = _value(func, args, kwargs, argument) if argument else None
    if name in ("any", "all") and named is not None and not isinstance(named, int) and not named:
        return NotImplemented  # they are along no dimension then
    along = _dims(named, tensor.ndim)
    if rows.dim in along:
        joined = _OVER_ROWS.get(name)
        return NotImplemented if joined is None else joined(func, tensor, along, args, kwargs)
    keeps = bool(_value(func, args, kwargs, _KEEPDIM))
    dim = rows.dim if keeps else rows.dim - sum(one < rows.dim for one in along)
    return _on_rows(func(tensor.local, *args[1:], **kwargs), tensor, RowPart(dim, rows.each))


@table.rule(*_KEEPING)
def along(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Computes along other dimensions than the rows."""
    lead = next((t for t in args if isinstance(t, PlacedTensor)), None)
    rows = lead.placement if lead is not None else None
    argument = _dim_argument(func)
    if lead is None or func._schema.is_mutable or not isinstance(rows, RowPart) or argument is None:
        return NotImplemented
    found = _value(func, args, kwargs, argument)
    if found is None or rows.dim in _dims(found, lead.ndim) or found in ([], ()):
        return NotImplemented
    given = [
        part_of(value, rows, lead.share) if isinstance(value, torch.Tensor) else value
        for value in args
    ]
    if any(mine is None and value is not None for mine, value in zip(given, args, strict=True)):
        return NotImplemented
    return _on_rows(func(*given, **kwargs), lead, rows)


def _on_rows(made: Any, like: PlacedTensor, rows: RowPart) -> Any:
    if isinstance(made, torch.Tensor):
        return PlacedTensor(made, rows, like.share)
    return (
        type(made)(_on_rows(one, like, rows) for one in made)
        if isinstance(made, tuple | list)
        else made
    )


# -- over rows -------------------------------------------------------------------------------------


def _sum(func: Any, tensor: PlacedTensor, along: Sequence[int], args: Any, kwargs: Any) -> Any:
    made = func(tensor.local, *args[1:], **kwargs)
    return PlacedTensor(made, TERM, tensor.share)


def _mean(func: Any, tensor: PlacedTensor, along: Sequence[int], args: Any, kwargs: Any) -> Any:
    if not tensor.dtype.is_floating_point and kwargs.get("dtype") is None:
        return NotImplemented
    made = func(tensor.local, *args[1:], **kwargs)
    return PlacedTensor(made.mul_(tensor.share.count / tensor.share.total), TERM, tensor.share)


def _extreme(largest: bool) -> Callable[..., Any]:
    def reduce(
        func: Any, tensor: PlacedTensor, along: Sequence[int], args: Any, kwargs: Any
    ) -> Any:
        if (
            func._overloadname not in ("", "default", "dim", "dims")
            or len(func._schema.returns) > 1
        ):
            return NotImplemented
        made = func(tensor.local, *args[1:], **kwargs)
        return tensor.share.exchanges.extreme(made, largest)

    return reduce


def _norm(func: Any, tensor: PlacedTensor, along: Sequence[int], args: Any, kwargs: Any) -> Any:
    # Of complex numbers and of other orders every worker computes the whole.
    order = _value(func, args, kwargs, "ord")
    if order not in (2, 2.0) or tensor.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    made = func(tensor.local, *args[1:], **kwargs)
    return tensor.share.exchanges.sum([made.square()])[0].sqrt()


def _variance(func: Any, tensor: PlacedTensor, along: Sequence[int], args: Any, kwargs: Any) -> Any:
    if func._overloadname != "correction" or tensor.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    share, local, dims = tensor.share, tensor.local, list(along)
    numel = 1
    for dim in dims:
        numel *= tensor.shape[dim]
    correction = _value(func, args, kwargs, "correction")
    correction = 1 if correction is None else correction
    mean = share.exchanges.sum([local.sum(dims, keepdim=True)])[0] / numel
    keepdim = bool(_value(func, args, kwargs, _KEEPDIM))
    squares = (local - mean).square_().sum(dims, keepdim=keepdim)
    return PlacedTensor(squares / max(numel - correction, 0), TERM, share)


_OVER_ROWS: dict[str, Callable[..., Any]] = {
    "sum": _sum, "count_nonzero": _sum, "mean": _mean, "amax": _extreme(True), "amin": _extreme(False), "any": _extreme(True), "all": _extreme(False),
    "max": _extreme(True), "min": _extreme(False), "linalg_vector_norm": _norm, "var": _variance,
}  # fmt: skip
