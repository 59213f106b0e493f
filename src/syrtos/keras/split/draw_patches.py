"""The patches of Keras 3's random draws, where each worker computes a share of a batch.

Draws for rows differ between workers, as the rows do. What one process draws once for a batch (noise
for gradients, a factor by which a batch is mixed) is the same on all workers; the comparison of the
first batch shows which draws these are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

import keras
from keras import ops

from syrtos.keras import backend
from syrtos.keras.patching import Patch
from syrtos.keras.split import shares

if TYPE_CHECKING:
    from syrtos.keras.protocols import P, R


class _Seed(Protocol):
    """A tensor of a backend, of the two unsigned integers that a random operation takes."""

    @property
    def dtype(self) -> object: ...

    def __add__(self, offset: object, /) -> Self: ...


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


def _of_shape(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function that draws numbers of a shape, its first argument."""

    def draw(*args: P.args, **kwargs: P.kwargs) -> R:
        with _drawing(args[0] if args else kwargs.get("shape")):
            return original(*args, **kwargs)

    return draw


def _of_mask(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps `dropout`, whose mask has the shape of the inputs, or another that it is given."""

    def dropout(*args: P.args, **kwargs: P.kwargs) -> R:
        with _drawing(kwargs.get("noise_shape") or getattr(args[0], "shape", None)):
            return original(*args, **kwargs)

    return dropout


def _drawing(shape: object) -> contextlib.AbstractContextManager[None]:
    step = backend.active().current_step()
    is_for_batch = step is not None and step.draws_once(shape)
    return step.drawing_once() if step and is_for_batch else contextlib.nullcontext()


_OF_SHAPE = ("beta", "binomial", "gamma", "normal", "randint", "truncated_normal", "uniform")


SEEDS = [
    Patch("keras.src.random.seed_generator:SeedGenerator", "next", _seed_by_rank, "Workers have equal seeds, and draw other numbers for their rows."),
]  # fmt: skip


def of_draws(framework: str) -> list[Patch]:
    """Returns the patches of draws for Keras 3 on a framework, named as KERAS_BACKEND does."""
    draws, once = (
        f"keras.src.backend.{framework}.random",
        "What one process draws once for a batch is the same on all workers.",
    )
    return [
        *(Patch(draws, name, _of_shape, once) for name in _OF_SHAPE),
        Patch(draws, "dropout", _of_mask, once),
    ]
