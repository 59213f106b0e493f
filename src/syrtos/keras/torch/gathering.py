"""Gathers the rows that all workers have computed, or have of a batch, without a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import keras
import numpy as np
import torch

from syrtos.comm.communicator import ReduceOp
from syrtos.keras.torch import ops

if TYPE_CHECKING:
    from syrtos.keras.torch.step import TorchStep

# Leaves in tuples, lists and dictionaries, which come back in the same form.
_Tree = TypeVar("_Tree")


def rows_of_all(step: TorchStep, tree: _Tree) -> _Tree:
    """Returns the structure with the rows of all workers, in order, in the place of this worker's.

    Floating scalars become their mean by samples, whole numbers their sum. All workers call this
    together.
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
        return ops.allgather(step.session.comm, leaf.detach() if step.samples else leaf[:0])


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
