"""Random draws of Keras's layers in a step on a share: those of one process.

All workers have torch's generators in the same states. What is drawn for rows is drawn for the rows
of all workers, by each of them, which keeps its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from syrtos.keras.patching import Patch
from syrtos.keras.torch.partition.placed import strides_with
from syrtos.keras.torch.step import TorchStep, current_step

if TYPE_CHECKING:
    from syrtos.keras.protocols import R

_RANDOM = "keras.src.backend.torch.random"
_OF_SHAPE = ("beta", "binomial", "gamma", "normal", "randint", "truncated_normal", "uniform")
_WHY = "A worker draws for its rows what one process would draw for them."


def _of_shape(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wraps a function that draws numbers of a shape, its first argument."""

    def draw(shape: Sequence[int], *args: object, **kwargs: object) -> torch.Tensor:
        step = current_step()
        if step is None or not step.splits_batch or not len(shape):
            return original(shape, *args, **kwargs)
        rows = _rows(step, shape[0])
        if rows is None:
            return original(shape, *args, **kwargs)
        start, count, total = rows
        return original((total, *shape[1:]), *args, **kwargs)[start : start + count]

    return draw


def _of_mask(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wraps `dropout`, which is computed of ones for all rows."""

    def dropout(
        inputs: torch.Tensor,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: object = None,
    ) -> torch.Tensor:
        step = current_step()
        rows = None
        if step is not None and step.splits_batch and inputs.ndim:
            rows = _rows(step, len(inputs))
        if rows is None:
            return original(inputs, rate, noise_shape, seed)
        start, count, total = rows
        # A layer may have counted its rows: see `split_function.TorchFunction.partitions`.
        if noise_shape is not None and noise_shape[0] == len(inputs):
            noise_shape = (total, *noise_shape[1:])
        # Draws are in the order of the memory, which layers may have permuted.
        size = (total, *inputs.shape[1:])
        strides = strides_with(inputs.shape, inputs.stride(), 0, total)
        ones = torch.empty_strided(size, strides, dtype=inputs.dtype, device=inputs.device)
        scales = original(ones.fill_(1), rate, noise_shape, seed)
        return inputs * scales[start : start + count]

    return dropout


def _rows(step: TorchStep, size: int) -> tuple[int, int, int] | None:
    """Returns the first entry of this worker's rows, their number and that of all workers.

    None where a dimension of ``size`` is not made of rows. All workers call this together.
    """
    start, count, total = step.bounds()
    # A worker without samples computes with a row that does not count.
    each, rest = divmod(size, max(count, 1))
    return None if rest else (start * each if count else 0, size, total * each)


PATCHES = [
    *(Patch(_RANDOM, name, _of_shape, _WHY) for name in _OF_SHAPE),
    Patch(_RANDOM, "dropout", _of_mask, _WHY),
]


def with_common_seed(original: Callable[..., R]) -> Callable[..., R]:
    """Wraps `keras.utils.split_dataset`: without a seed all workers shuffle alike.

    On torch a generator of its own would take fresh entropy.
    """
    signature = inspect.signature(original)

    def split_dataset(*args: object, **kwargs: object) -> R:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("shuffle") and given.get("seed") is None:
            # NumPy's entropy is the same on all workers of a run.
            given["seed"] = int(np.random.SeedSequence().generate_state(1)[0])
        return original(**given)

    return split_dataset
