"""Gathers the rows that all workers have computed in a step on their shares.

Gradients flow back to each worker's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import keras
import numpy as np
import torch

from syrtos.comm.communicator import ReduceOp
from syrtos.keras.torch import ops

if TYPE_CHECKING:
    from syrtos.keras.torch.step import TorchStep

# Leaves in tuples, lists and dictionaries, which come back in the same form.
_Tree = TypeVar("_Tree")
_MASK = "_keras_mask"


class _GatheredContext(Protocol):
    """The place of this worker's rows among all, which `_Gathered` keeps between its two passes."""

    fraction: float
    start: int
    rows: int
    shape: torch.Size


def rows_of_all(step: TorchStep, tree: _Tree) -> _Tree:
    """Returns the structure with the rows of all workers, in order, in the place of this worker's.

    See `syrtos.keras.backend.Step`.
    """
    # Keras declares one type for all structures.
    return cast("_Tree", keras.tree.map_structure(lambda leaf: _gather_leaf(step, leaf), tree))


def outputs_of_all(step: TorchStep, outputs: _Tree) -> _Tree:
    """Returns what `rows_of_all` does of outputs, which may be arrays, and stay such."""
    found = keras.tree.map_structure(
        lambda own, of_all: of_all.numpy() if isinstance(own, np.ndarray) else of_all,
        outputs,
        rows_of_all(step, outputs),
    )
    return cast("_Tree", found)


def _gather_leaf(step: TorchStep, leaf: object) -> object:
    if isinstance(leaf, np.ndarray):
        leaf = torch.from_numpy(leaf)
    if not isinstance(leaf, torch.Tensor):
        return leaf
    with step.session.ledger.span("exchange"):
        if leaf.ndim == 0:
            return _combine_scalars(step, leaf)
        result = _Gathered.apply(leaf, step)
        # Keras hands a mask from layer to layer as an attribute of the tensor, which a new tensor
        # would lack.
        mask = getattr(leaf, _MASK, None)
        if mask is not None:
            setattr(result, _MASK, _Gathered.apply(mask, step))
    return result


def _combine_scalars(step: TorchStep, value: torch.Tensor) -> torch.Tensor:
    """Returns the scalar of the whole batch.

    It is the mean by samples of floating scalars, and the sum of whole numbers.
    """
    if value.dtype == torch.bool:
        return value
    part = value * step.fraction() if value.is_floating_point() else value
    # A worker without samples takes part with zero, whatever its row that does not count has given.
    part = part if step.samples else torch.zeros_like(value)
    return ops.allreduce(step.session.comm, part, ReduceOp.SUM).to(value.dtype)


class _Gathered(torch.autograd.Function):
    """The rows of all workers that have samples, with a gradient."""

    @staticmethod
    def forward(ctx: _GatheredContext, value: torch.Tensor, step: TorchStep) -> torch.Tensor:
        comm, mine = step.session.comm, value.detach() if step.samples else value.detach()[:0]
        counts = comm.agree("rows of each worker", float(len(mine)))
        ctx.fraction, ctx.shape = step.fraction(), value.shape
        ctx.start, ctx.rows = int(sum(counts[: comm.rank])), len(mine)
        return ops.allgather(comm, mine)

    @staticmethod
    def backward(ctx: _GatheredContext, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        if not ctx.rows:
            return grads[0].new_zeros(ctx.shape), None
        # In a step this worker's gradients will count by its part of the samples. Those that come
        # back here are complete already, so they are divided by that part.
        return grads[0][ctx.start : ctx.start + ctx.rows] / ctx.fraction, None
