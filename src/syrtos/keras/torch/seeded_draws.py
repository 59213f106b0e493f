"""Finds random draws of a step on torch by a seed that all workers share, while the step runs.

Such are `keras.random.normal(shape, seed=5)` and draws from a `torch.Generator` of the script's.
Each worker would draw for its rows what the others draw for theirs, and one process draws other
numbers for each row. A comparison of both ways does not show it, as it has no draws.
`syrtos.keras.tensorflow.seeded_draws` reads the same in a graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import keras
import torch

from syrtos.keras.torch import torch_internals

_P = ParamSpec("_P")
_R = TypeVar("_R")
# The functions of Keras's backend that take a seed.
_OF_KERAS = (
    "beta", "binomial", "categorical", "dropout", "gamma", "normal", "randint", "shuffle", "truncated_normal", "uniform",
)  # fmt: skip
# The functions of torch, and the methods of tensors, that take a generator.
_OF_TORCH = (
    "bernoulli", "multinomial", "normal", "poisson", "rand", "randint", "randn", "randperm",
)  # fmt: skip
_OF_TENSORS = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_", "random_", "uniform_",
)  # fmt: skip


class SeededDraws:
    """The first draw for rows by a seed that all workers share.

    Attributes:
        first: the name of the function that drew; empty while there is none.
    """

    def __init__(self, rows: int, by_rank: bool) -> None:
        """
        Args:
            rows: the number of rows of this worker's share.
            by_rank: whether seeds of `SeedGenerator`, others on each worker, will do.
        """
        self.first = ""
        self._rows, self._by_rank = rows, by_rank
        self._is_paused = False

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Context manager: notes the draws that are made in it."""
        functions = [
            *(
                (torch_internals.random_functions_of_keras(), name, self._of_keras)
                for name in _OF_KERAS
            ),
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
            if not self._by_rank or isinstance(kwargs.get("seed"), int):
                self._note(f"keras.random.{name}", drawn)
            return drawn

        return draw

    def _of_torch(self, original: Callable[_P, _R], name: str) -> Callable[_P, _R]:
        def draw(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            drawn = original(*args, **kwargs)
            if kwargs.get("generator") is not None:
                self._note(f"torch.{name}", drawn)
            return drawn

        return draw

    @contextlib.contextmanager
    def _pausing(self) -> Iterator[None]:
        outer, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = outer

    def _note(self, name: str, drawn: object) -> None:
        has_rows = isinstance(drawn, torch.Tensor) and drawn.ndim and len(drawn) == self._rows
        if has_rows and not self.first and not self._is_paused:
            self.first = name
