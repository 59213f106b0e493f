"""Random draws of a step on torch: which of them are made for rows, and by which seeds.

`Recorder` notes the draws of a step while the step is tried. A seed that all workers share, as in
`keras.random.normal(shape, seed=5)` or in a `torch.Generator` of the script's, is wrong for rows:
each worker would draw for its rows what the others draw for theirs. A comparison of both ways does
not show it, as it has no draws.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import keras
import torch

from syrtos.keras.patching import replace
from syrtos.keras.torch import torch_internals
from syrtos.keras.torch.step import current_step

_P = ParamSpec("_P")
_R = TypeVar("_R")
# The functions of Keras's backend that take a seed.
_OF_KERAS = (
    "beta", "binomial", "categorical", "dropout", "gamma", "normal", "randint", "shuffle", "truncated_normal", "uniform",
)  # fmt: skip
# The functions of torch that draw, and the methods of tensors that do.
_OF_TORCH = (
    "bernoulli", "multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
)  # fmt: skip
_OF_TENSORS = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_", "random_", "uniform_",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Draw:
    """A random draw of a step.

    Attributes:
        name: of the function that drew.
        shape: of the numbers.
        has_shared_seed: whether all workers have its seed.
        is_of_keras: whether it has a seed of Keras's.
    """

    name: str
    shape: tuple[int, ...]
    has_shared_seed: bool
    is_of_keras: bool

    def has_rows(self, count: int) -> bool:
        """Returns whether it was made for ``count`` rows."""
        return self.shape[:1] == (count,)


class Recorder:
    """The draws of a step.

    Attributes:
        draws: what was drawn, in order.
    """

    def __init__(self) -> None:
        self.draws: list[Draw] = []
        self._is_paused = False
        self._thread = 0

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Context manager: notes the draws that this thread makes in it."""
        self._thread = threading.get_ident()
        of_keras = torch_internals.random_functions_of_keras()
        functions = [
            *((of_keras, name, self._of_keras) for name in _OF_KERAS),
            *((torch, name, self._of_torch) for name in _OF_TORCH),
            *((torch.Tensor, name, self._of_torch) for name in _OF_TENSORS),
            (keras.Variable, "__init__", self._of_variable),
        ]
        with contextlib.ExitStack() as stack:
            for owner, name, wrapper in functions:
                original = getattr(owner, name)
                stack.callback(setattr, owner, name, original)
                setattr(owner, name, wrapper(original, name))
            yield

    def _of_variable(self, original: Callable[_P, _R], name: str) -> Callable[_P, _R]:
        """Wraps the `__init__` of variables: weights are drawn by a constant seed, alike on all."""
        del name

        def init(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self._pausing():
                return original(*args, **kwargs)

        return init

    def _of_keras(self, original: Callable[_P, _R], name: str) -> Callable[_P, _R]:
        def draw(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            # It draws from a generator of torch's in its turn.
            with self._pausing():
                drawn = original(*args, **kwargs)
            # A seed of Keras is a whole number, or a `SeedGenerator`; None is one of Keras's.
            self._note(f"keras.random.{name}", drawn, isinstance(kwargs.get("seed"), int), True)
            return drawn

        return draw

    def _of_torch(self, original: Callable[_P, _R], name: str) -> Callable[_P, _R]:
        def draw(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            # Where torch's functions are watched, a method of a tensor comes here once more.
            with self._pausing():
                drawn = original(*args, **kwargs)
            self._note(f"torch.{name}", drawn, kwargs.get("generator") is not None, False)
            return drawn

        return draw

    @contextlib.contextmanager
    def _pausing(self) -> Iterator[None]:
        outer, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = outer

    def _note(self, name: str, drawn: object, has_shared_seed: bool, is_of_keras: bool) -> None:
        # Threads that read data draw too.
        is_own = threading.get_ident() == self._thread
        if isinstance(drawn, torch.Tensor) and is_own and not self._is_paused:
            self.draws.append(Draw(name, tuple(drawn.shape), has_shared_seed, is_of_keras))


# -- draws that are made once for a batch ----------------------------------------------------------


def install() -> None:
    """Makes torch's functions draw the same on all workers what a step draws once for a batch."""
    for name in _OF_TORCH:
        replace(torch, name, _drawing_once)
    for name in _OF_TENSORS:
        replace(torch.Tensor, name, _drawing_once)


def _drawing_once(original: Callable[_P, torch.Tensor]) -> Callable[_P, torch.Tensor]:
    def draw(*args: _P.args, **kwargs: _P.kwargs) -> torch.Tensor:
        drawn, step = original(*args, **kwargs), current_step()
        if step is None or kwargs.get("generator") is not None or not step.draws_once(drawn.shape):
            return drawn
        # Its shape has told what it is for.
        with step.common_random_numbers():
            return original(*args, **kwargs)

    return draw
