"""Tensors of which each worker has a part, and which Python sees as whole ones.

Autograd, shapes and Python see the tensor of the whole batch. Below autograd each operation is
computed on this worker's part if a rule says how (see `rules`). Any other operation gets its inputs
whole, and every worker computes it: a missing rule costs time, and changes no number.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from syrtos.keras.split.script_lines import line_of_script
from syrtos.keras.torch import torch_internals
from syrtos.keras.torch.partition import table
from syrtos.keras.torch.partition.placements import TERM, WHOLE, BatchShare, Placement, RowPart

# Any: functions of torch take and return trees of any kind.
_Args = tuple[Any, ...]
# Torch reads their results by their addresses: the sizes of a packed sequence.
_READ_BELOW = ("aten::_pack_padded_sequence",)
_TORCH = str(torch.__path__[0])
# Elements of a tensor that is exchanged beside others.
_SMALL = 1 << 14


class PlacedTensor(torch.Tensor):
    """A tensor that several workers have in parts.

    Attributes:
        local: this worker's part.
        placement: says which part it is.
        share: this worker's rows of the batch.
        view_of: where ``placement`` is `WHOLE`, and the tensor is a view of another placed tensor:
            writes this tensor back into that one.
        rounded_as: the dtype in which one process has made a sum that was widened since: it rounds the
            sum so, or it exceeds the range. None for others.
    """

    local: torch.Tensor
    placement: Placement
    share: BatchShare
    view_of: Callable[[torch.Tensor], None] | None
    rounded_as: torch.dtype | None
    _gathered: torch.Tensor | None
    _writes_gathered: int
    _source: _Source | None

    # The default implementation would make every result a tensor of this class.
    __torch_function__ = torch_internals.NO_TORCH_FUNCTION

    @staticmethod
    def __new__(
        cls,  # noqa: ANN001
        local: torch.Tensor,
        placement: Placement,
        share: BatchShare,
    ) -> PlacedTensor:
        """
        Args:
            local: see above.
            placement: see above.
            share: see above.
        """
        shape, strides = local.shape, local.stride()
        if isinstance(placement, RowPart):
            size = share.total * placement.each
            strides = strides_with(shape, strides, placement.dim, size)
            shape = (*shape[: placement.dim], size, *shape[placement.dim + 1 :])
        self = torch_internals.wrapping_tensor(cls, shape, strides, local)
        self.local, self.placement, self.share = local, placement, share
        self.view_of = self._gathered = self._source = self.rounded_as = None
        share.alive.append(weakref.ref(self))
        if placement is TERM and local.numel() <= _SMALL:
            share.pending.append(self)
        return self

    @classmethod
    def from_part(
        cls, made: torch.Tensor, rows: Placement, of: PlacedTensor, func: Any
    ) -> PlacedTensor:
        """Returns a tensor that ``func`` has made of this worker's part of another one.

        Of a small one that is known whole, the whole is made too: labels are often needed whole.
        """
        found = PlacedTensor(made, rows, of.share)
        found.rounded_as = of.rounded_as
        if of.numel() <= _SMALL and (known := of.known_whole) is not None:
            found.keep_whole(func(known))
        return found

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Iterable[type],
        args: _Args = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        rule = table.rule_for(func)
        if rule is not None and _follows_rules(args, func):
            found = rule(func, args, kwargs or {})
            if found is not NotImplemented:
                return found
        return compute_whole(func, args, kwargs or {})

    def whole(self) -> torch.Tensor:
        """Returns the whole tensor, without a gradient. All workers call this together."""
        return wholes([self])[0]

    @property
    def known_whole(self) -> torch.Tensor | None:
        """The whole tensor if this worker has it already, else None."""
        if self.placement is WHOLE:
            is_old = self._source is not None and self._source.has_changed()
            return None if is_old else self.local
        if self._gathered is None or self.share.writes_to(self.local) != self._writes_gathered:
            return None
        return self._gathered

    def keep_whole(self, whole: torch.Tensor) -> None:
        """Keeps the whole tensor for whatever needs it next."""
        if self.rounded_as is not None:
            whole = whole.to(self.rounded_as).to(whole.dtype)
        self._gathered, self._writes_gathered = whole, self.share.writes_to(self.local)

    def take_view(self, view: PlacedTensor) -> None:
        """Takes the part and the placement of a view of this tensor."""
        self.local, self.placement, self._gathered = view.local, view.placement, None

    def was_written(self) -> None:
        """Notes that this worker's part was overwritten: it is shared with views and aliases."""
        self.share.note_write(self.local)

    def write(self, whole: torch.Tensor) -> None:
        """Overwrites the tensor by a whole one.

        Raises:
            NotImplementedError: it has another shape.
        """
        if whole.shape != self.shape:
            raise NotImplementedError(
                f"The shape of a tensor of the batch, {tuple(self.shape)}, can't be changed in place"
                f" to {tuple(whole.shape)}. Make a new tensor, e.g. by `reshape` or by slicing."
            )
        self.rounded_as = None
        if self.placement is WHOLE:
            if whole is not self.local:
                self.local.copy_(whole)
            self.was_written()
            if self.view_of is not None:
                self.view_of(self.local)
            return
        if isinstance(self.placement, RowPart):
            self.local.copy_(self.share.cut(whole, self.placement))
        elif self.share.start == 0:  # of a sum one worker has all, and the others nothing
            self.local.copy_(whole)
        else:
            self.local.zero_()
        self.was_written()
        self.keep_whole(whole)

    # -- what Python reads -------------------------------------------------------------------------

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        if self.requires_grad and not force:
            return cast("np.ndarray[Any, Any]", torch.empty(0, requires_grad=True).numpy())
        return self.whole().numpy(force=force)

    def __array__(self, dtype: Any = None) -> np.ndarray[Any, Any]:
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def tolist(self) -> Any:
        return self.whole().tolist()

    def data_ptr(self) -> int:
        return self.whole().data_ptr()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.whole().__dlpack__(**kwargs)

    def __format__(self, spec: str) -> str:
        return self.whole().__format__(spec)

    @property
    def data(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        with torch.no_grad():
            self.detach().copy_(value)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return repr(self.whole())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.whole().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        memo[id(self)] = found = self.whole().clone().requires_grad_(self.requires_grad)
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        # torch writes through views of rows, which are other tensors here.
        changed = to_whole(self).clone()
        changed[index] = value
        self.copy_(changed)


def strides_with(
    shape: Sequence[int], strides: Sequence[int], dim: int, size: int
) -> tuple[int, ...]:
    """Returns strides for memory of the same order, with ``size`` entries along a dimension."""
    if dim == 0 and strides[0] == max(strides):
        return tuple(strides)
    if strides[dim] == 0:  # the same entries again
        return tuple(strides)
    mine, count = strides[dim], max(shape[dim], 1)
    return tuple(s // count * size if s > mine else s for s in strides)


def _follows_rules(args: Sequence[Any], func: Any) -> bool:
    """Returns whether rules hold for the arguments: none is sparse, or a sum that is yet to be rounded.

    Operations that keep elements as they are hold for such a sum too.
    """
    for one in args:
        if isinstance(one, PlacedTensor):
            if one.rounded_as is not None and not table.keeps_elements(func):
                return False
        elif isinstance(one, torch.Tensor):
            if one.layout is not torch.strided:
                return False
        elif isinstance(one, list | tuple) and not _follows_rules(one, func):
            return False
    return True


class _ToWhole(torch.autograd.Function):
    """The whole tensor, with a gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return cast("PlacedTensor", tensor).whole().clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def to_whole(tensor: PlacedTensor) -> torch.Tensor:
    """Returns a whole copy of a tensor, through which gradients flow."""
    return cast("torch.Tensor", _ToWhole.apply(tensor))


def wholes(tensors: Sequence[PlacedTensor]) -> list[torch.Tensor]:
    """Returns whole tensors, without gradients; sums travel together. All workers call it together."""
    missing = {id(t): t for t in tensors if t.known_whole is None}
    for kind in {t.dtype: None for t in missing.values() if t.placement is TERM}:
        sums = [t for t in missing.values() if t.placement is TERM and t.dtype is kind]
        sums += _pending_beside(sums)
        found = sums[0].share.exchanges.sum([t.local for t in sums])
        for tensor, whole in zip(sums, found, strict=True):
            tensor.keep_whole(whole)
    for tensor in missing.values():
        rows = tensor.placement
        if tensor._source is not None:
            tensor.local = tensor._source.renew()
        if isinstance(rows, RowPart):
            local = tensor.local.movedim(rows.dim, 0)
            gathered = tensor.share.exchanges.gather(local).movedim(0, rows.dim)
            tensor.keep_whole(_with_strides(gathered, tensor.stride()))
    return [cast("torch.Tensor", tensor.known_whole) for tensor in tensors]


def _with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor in memory of the given order, which Python has seen: views depend on it."""
    if tensor.stride() == strides or 0 in strides:
        return tensor
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _pending_beside(sums: Sequence[PlacedTensor]) -> list[PlacedTensor]:
    """Returns the other small sums of a dtype that wait for an exchange, and wait no longer."""
    share, asked = sums[0].share, {id(tensor) for tensor in sums}
    waiting = cast("list[PlacedTensor]", share.pending)
    share.pending = [t for t in waiting if t.dtype is not sums[0].dtype]
    return [
        t
        for t in waiting
        if t.dtype is sums[0].dtype
        and id(t) not in asked
        and t.placement is TERM
        and t.known_whole is None
    ]


def cut_like(whole: torch.Tensor, share: BatchShare, like: Placement) -> torch.Tensor:
    """Returns a whole tensor cut to this worker's rows where it has some; else the tensor itself."""
    if whole.layout is not torch.strided or whole.is_nested:
        return whole
    dims = [like] if isinstance(like, RowPart) else []
    for rows in [*dims, RowPart(0, 1), RowPart(0, 2)]:
        if whole.ndim > rows.dim and whole.shape[rows.dim] == share.total * rows.each:
            part = share.cut(whole, rows)
            # A cut part has gaps unless its rows are the outermost dimension of the memory: then the
            # strides of the whole could not be told from its own.
            is_dense = whole.stride(rows.dim) in (0, max(whole.stride()))
            found = PlacedTensor(part if is_dense else part.clone(), rows, share)
            found.keep_whole(whole)
            return found
    return whole


def compute_whole(func: Any, args: _Args, kwargs: Mapping[str, Any]) -> Any:
    """Computes an operation on whole tensors, as every other worker does."""
    flat, spec = torch_internals.tree_flatten((args, dict(kwargs)))
    placed = [leaf for leaf in flat if isinstance(leaf, PlacedTensor)]
    share = max((t.share for t in placed), key=lambda each: each.number)
    if share.whole is not None and any(
        isinstance(t.placement, RowPart) and t.known_whole is None for t in placed
    ):
        _note(share.whole, func)
    found = dict(zip(map(id, placed), wholes(placed), strict=True))
    written, viewed = table.aliases(func, args, kwargs)
    for target in written:
        # What a view of it shares may be the batch itself, which one process would change too.
        if isinstance(target, PlacedTensor) and target.placement is not WHOLE:
            found[id(target)] = found[id(target)].clone()
    given, named = torch_internals.tree_unflatten(
        [found.get(id(leaf), leaf) for leaf in flat], spec
    )
    made = func(*given, **named)
    for target in written:
        if isinstance(target, PlacedTensor):
            target.write(found[id(target)])
    back = {id(found[id(t)]): t for t in written if isinstance(t, PlacedTensor)}
    like = next((t.placement for t in placed if isinstance(t.placement, RowPart)), WHOLE)
    base = next((t for t in viewed if isinstance(t, PlacedTensor)), None)

    def placed_again(out: object) -> object:
        if not isinstance(out, torch.Tensor) or isinstance(out, PlacedTensor):
            return out
        if func._schema.name in _READ_BELOW:
            return out
        if id(out) in back:
            return back[id(out)]
        return cut_like(out, share, like) if base is None else out

    if base is None:
        return torch_internals.tree_map(placed_again, made)
    return _views(made, base, lambda whole: func(*_with(args, base, whole), **kwargs))


def _with(args: _Args, base: PlacedTensor, whole: torch.Tensor) -> _Args:
    return tuple(whole if arg is base else arg for arg in args)


def _views(made: Any, base: PlacedTensor, view: Callable[[torch.Tensor], Any]) -> Any:
    """Returns the views that ``view`` makes of a tensor; what is written to them reaches that."""
    if isinstance(made, list | tuple):
        parts = [_views(one, base, lambda whole, i=i: view(whole)[i]) for i, one in enumerate(made)]
        return type(made)(parts)

    def write_back(changed: torch.Tensor) -> None:
        whole = base.whole() if base.placement is WHOLE else base.whole().clone()
        view(whole).copy_(changed)
        base.write(whole)

    found = PlacedTensor(made, WHOLE, base.share)
    found.view_of, found._source = write_back, _Source(base, view)
    return found


class _Source:
    """The tensor that a view is of: what is written to it changes the view."""

    def __init__(self, base: PlacedTensor, view: Callable[[torch.Tensor], Any]) -> None:
        self._base, self._view = base, view
        self._seen = self._writes()

    def _writes(self) -> int:
        return self._base.share.writes_to(self._base.local)

    def has_changed(self) -> bool:
        """Returns whether the tensor was written to since the view was made."""
        outer = self._base._source
        return self._writes() != self._seen or (outer is not None and outer.has_changed())

    def renew(self) -> torch.Tensor:
        """Returns the view of what the tensor is now. All workers call this together."""
        whole = self._base.whole()
        self._seen = self._writes()
        return self._view(whole)


def _note(whole: dict[str, int], func: Any) -> None:
    """Notes an operation that every worker computes whole, with the script's line."""
    frames, frame = [], sys._getframe(2)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    line = line_of_script(frames, _TORCH, "torch")
    name = func._schema.name.removeprefix("aten::")
    key = f"{name} in {line}" if line else name
    whole[key] = whole.get(key, 0) + 1
