"""The patches of Keras 3 where each worker computes a share of a batch.

They change optimizers, losses and means. A share's loss counts by its samples, so that plain
means are right as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

import keras
from keras import ops

from syrtos.comm.communicator import Communicator
from syrtos.keras import backend
from syrtos.keras.features import sharding
from syrtos.keras.patching import Method, Patch
from syrtos.keras.split import shares

if TYPE_CHECKING:
    from syrtos.keras.protocols import Optimizer, Shape


class _Seed(Protocol):
    """A tensor of a backend, of the two unsigned integers that a random operation takes."""

    @property
    def dtype(self) -> object: ...

    def __add__(self, offset: object, /) -> Self: ...


OptimizerT = TypeVar("OptimizerT", bound="Optimizer")


class Tensor(Protocol):
    """An array or tensor: of NumPy, TensorFlow, torch or JAX."""

    @property
    def dtype(self) -> object:
        """The framework's own dtype."""
        ...

    @property
    def shape(self) -> Shape:
        """Its sizes; of a tensor of rows in a graph the first may be unknown."""
        ...


class _Gradient(Protocol):
    """A tensor of a backend, as a gradient that is scaled."""

    @property
    def dtype(self) -> object: ...

    # A factor that the backend takes: a tensor, or a number.
    def __mul__(self, factor: Any, /) -> Self: ...


GradientT = TypeVar("GradientT", bound=_Gradient)


class _LossScaleOptimizer(Protocol):
    """`keras.optimizers.LossScaleOptimizer`, around the optimizer that makes the updates."""

    inner_optimizer: Optimizer


# -- optimizers: reduce, then clip, then check -----------------------------------------------------


def _reduce_then_clip(
    original: Callable[[OptimizerT, list[_Gradient]], list[_Gradient]],
) -> Callable[[OptimizerT, list[_Gradient]], list[_Gradient]]:
    def clip_gradients(self: OptimizerT, grads: list[_Gradient]) -> list[_Gradient]:
        # Keras has left out the variables without a gradient.
        reduced = cast("list[_Gradient]", list(backend.active().reduce_gradients(self, grads)))
        workers = sharding.clips_parts(self)
        return (
            original(self, reduced) if workers is None else _clip_in_parts(self, reduced, workers)
        )

    return clip_gradients


def _clip_in_parts(
    optimizer: Optimizer, grads: list[GradientT], comm: Communicator
) -> list[GradientT]:
    """Returns gradient parts, clipped by the norms of the whole with Keras's formulas (3.15.1)."""
    squares = ops.stack([ops.cast(ops.sum(ops.square(gradient)), "float32") for gradient in grads])
    squares = backend.active().on_host(comm.allreduce, squares, (len(grads),))
    # Any: of Keras's functions pyright infers a union of all backends' results, None among them.
    if optimizer.clipnorm:
        bounds: Any = ops.maximum(ops.sqrt(squares), optimizer.clipnorm)
        factors = optimizer.clipnorm / bounds
        return [
            gradient * ops.cast(factors[index], gradient.dtype)
            for index, gradient in enumerate(grads)
        ]
    norm: Any = ops.sqrt(ops.sum(squares))
    limit = cast(
        "float", optimizer.global_clipnorm
    )  # `sharding.clips_parts` has seen that there is one
    inverse: Any = ops.minimum(1.0 / norm, 1.0 / limit)
    factor = limit * inverse
    factor += norm - norm  # NaN where the norm is NaN or infinite, as in Keras
    return [gradient * ops.cast(factor, gradient.dtype) for gradient in grads]


def _check_finite_everywhere(
    original: Callable[[_LossScaleOptimizer, list[_Gradient]], Tensor],
) -> Callable[[_LossScaleOptimizer, list[_Gradient]], Tensor]:
    def check_finite(self: _LossScaleOptimizer, grads: list[_Gradient]) -> Tensor:
        return backend.active().finite_everywhere(self.inner_optimizer, original(self, grads))

    return check_finite


# -- losses ----------------------------------------------------------------------------------


def _reduce_values(original: Method) -> Callable[..., Tensor]:
    def reduce_values(
        values: Tensor,
        sample_weight: Tensor | None = None,
        reduction: str | None = "sum_over_batch_size",
    ) -> Tensor:
        step = backend.active().current_step()
        if step is None or not len(values.shape):
            return original(values, sample_weight, reduction)
        # A share's loss counts by its part of the samples, and a sum is not to.
        if reduction == "sum":
            return original(values, sample_weight, reduction) / step.fraction_like(values)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            total = step.total_like(ops.cast(sample_weight, values.dtype))
            return cast(
                "Tensor", ops.divide_no_nan(ops.sum(values), total * step.fraction_like(values))
            )
        return original(values, sample_weight, reduction)

    return reduce_values


def _apply_mask(
    original: Callable[[Tensor | None, Tensor | None, object, str | None], Tensor],
) -> Callable[[Tensor | None, Tensor | None, object, str | None], Tensor]:
    def apply_mask(
        sample_weight: Tensor | None, mask: Tensor | None, dtype: object, reduction: str | None
    ) -> Tensor:
        return shares.masked_globally(
            original(sample_weight, mask, dtype, reduction), mask, reduction
        )

    return apply_mask


# -- random draws ----------------------------------------------------------------------------------


def _seed_by_rank(
    original: Callable[[keras.random.SeedGenerator, bool], _Seed],
) -> Callable[[keras.random.SeedGenerator, bool], _Seed]:
    def next_seed(self: keras.random.SeedGenerator, ordered: bool = True) -> _Seed:
        seed, rank = original(self, ordered), backend.active().rank_to_seed()
        if rank == 0:
            return seed
        offset = [rank * shares.SEED_STRIDE, 0]
        return seed + ops.convert_to_tensor(
            offset, dtype=keras.backend.standardize_dtype(seed.dtype)
        )

    return next_seed


# -- what is replaced, and why ---------------------------------------------------------------------

_OPTIMIZER = "keras:Optimizer"
SCALING = "keras.optimizers:LossScaleOptimizer"
_LOSS = "keras.src.losses.loss"
_METRICS = "keras.metrics"
_SAME = "An update is the same on all workers: its assignments need no exchange."
_VALUE = (
    "A number without a weight is a value of the whole batch, e.g. a loss that a custom"
    " `train_step` tracks."
)

_BEGIN = (
    "The first moment at which an optimizer and its variables are complete: they start equal."
    " Accumulated steps count by their own samples."
)


def optimizers(begin: Callable[[Method], Method]) -> list[Patch]:
    """Returns patches that reduce gradients; ``begin`` wraps an update's start on this backend."""
    return [
        Patch(_OPTIMIZER, "_backend_apply_gradients", begin, _BEGIN),
        Patch(_OPTIMIZER, "_clip_gradients", _reduce_then_clip, "The only hook that runs once per applied update: after accumulation, before clipping."),
        Patch(_OPTIMIZER, "apply", shares.updating, _SAME),
        Patch(SCALING, "apply", shares.updating, _SAME),
        Patch(SCALING, "check_finite", _check_finite_everywhere, "One worker must not skip an update that the others make."),
    ]  # fmt: skip


LOSSES = [
    Patch(_LOSS, "reduce_values", _reduce_values, "Sums and means by weight are made those of the global batch."),
    Patch(_LOSS, "apply_mask", _apply_mask, "A masked mean divides by the unmasked elements of the global batch."),
    Patch(f"{_METRICS}:Mean", "update_state", shares.counting_share, _VALUE),
    Patch(f"{_METRICS}:Sum", "update_state", shares.counting_share, _VALUE),
]  # fmt: skip
SEEDS = [
    Patch("keras.random:SeedGenerator", "next", _seed_by_rank, "Workers have equal seeds, and draw other numbers for their rows."),
]  # fmt: skip
