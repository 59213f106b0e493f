"""Adapts a model and its parts where workers compute shares of a batch, for Keras 3 and Keras 2."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, SupportsInt, TypeVar

from syrtos.comm import world
from syrtos.keras import backend, keras_internals
from syrtos.keras.features import finite
from syrtos.keras.split import noted_gradients

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer, P, R

# The variables and tensors of a backend.
VariableT = TypeVar("VariableT")
TensorT = TypeVar("TensorT")
OptimizerT = TypeVar("OptimizerT", bound="Optimizer")

# Far apart, so that counters that seeds are mixed with don't meet.
SEED_STRIDE = 0x9E3779


class Assignments(Generic[VariableT, TensorT]):
    """The variables that a step assigns, by identity, with the values that they had before.

    It is generic in the backend's variables and in its tensors.
    """

    def __init__(self) -> None:
        # The variables too: an identity is that of another object once its own is gone.
        self._dirty: dict[int, tuple[VariableT, TensorT]] = {}
        self._paused = False

    @property
    def draws_alike(self) -> bool:
        """Returns whether random numbers that are drawn now are the same on all workers.

        Those of an optimizer's update are.
        """
        return self._paused

    @contextlib.contextmanager
    def pausing_notes(self) -> Iterator[None]:
        """Context manager: what is assigned inside is already equal on all workers.

        An optimizer's update assigns such values.
        """
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before


def without_compilation(model: Model, why: str = "") -> None:
    """Turns off compiled steps of a model where they can't work, and says so on rank 0.

    It does so before the model's functions are made. ``why``: they can't work on several workers;
    empty: a compiled step can't contain the exchange between workers, or the check that `--on-nan`
    asks for.
    """
    session = world.current()
    place = session.world
    if place.size == 1 and not finite.is_asked():
        return
    # Asked for by `compile`, by `model.jit_compile = True`, or by Keras itself, which chooses it on
    # a GPU.
    if keras_internals.asks_for_compilation(model):
        if place.rank == 0:
            checks = f"the check that `--on-nan {session.options.on_nan}` asks for"
            what = "the exchange between workers" if place.size > 1 else checks
            why = why or f"a compiled step can't contain {what}"
            print(
                f"syrtos: jit_compile=True is turned off: {why}. The model runs without it.",
                file=sys.stderr,
            )
        model.jit_compile = False


# Names of Keras 3 and of Keras 2 for losses that are divided by a number of rows.
_MEANS = ("mean", "sum_over_batch_size", "auto")


def masked_globally(weights: TensorT, mask: TensorT | None, reduction: str | None) -> TensorT:
    """Turns mask weights normalized within the share into ones normalized within the global batch.

    It does so where ``reduction`` is a mean; elsewhere they stay as they are.
    """
    step = backend.active().current_step()
    if step is None or mask is None or reduction not in _MEANS:
        return weights
    # In place, as Keras has scaled a batch's own weights on torch, which metrics read later on.
    weights *= step.mask_factor(mask, weights)  # pyright: ignore[reportOperatorIssue]
    return weights


def counting_share(original: Callable[..., R]) -> Callable[..., R]:
    """Wraps `update_state` of a mean or a sum.

    A scalar is weighted by this worker's part of the samples.
    """

    def update_state(self: object, values: object, sample_weight: object = None) -> R:
        # Keras counts a scalar as one value of one batch, and without a weight each worker's would
        # count as one.
        step = backend.active().current_step()
        if step is None or sample_weight is not None:
            return original(self, values, sample_weight=sample_weight)
        return original(self, values, sample_weight=step.weight_of(values))

    return update_state


def updating(
    original: Callable[Concatenate[OptimizerT, P], R],
) -> Callable[Concatenate[OptimizerT, P], R | SupportsInt]:
    """Wraps an optimizer's method: what it assigns is equal on all workers already.

    Where gradients are noted (see `noted_gradients.noting_gradients`), it makes no update, and returns
    the number of those made before.
    """

    def method(self: OptimizerT, *args: P.args, **kwargs: P.kwargs) -> R | SupportsInt:
        update: Callable[..., R] = original
        arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        notes = noted_gradients.noting()
        if notes is not None:
            # `apply` takes gradients and, unless the optimizer is built, variables;
            # `apply_gradients` takes pairs, which may come from an iterator.
            first, *rest = arguments
            given = arguments[first] = list(arguments[first])
            if given and isinstance(given[0], tuple):
                gradients, variables = map(list, zip(*given, strict=True))
            else:
                gradients, more = given, arguments[rest[0]] if rest else None
                variables = list(more or getattr(self, "_trainable_variables", ()))
            notes.note(self, gradients, variables)
            if not notes.updates:
                return self.iterations
        positional = [arguments.pop(place) for place in range(len(args))]
        with noted_gradients.noting_nothing(), backend.active().updating():
            return update(self, *positional, **arguments)

    return method
