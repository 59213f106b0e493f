"""The equality of a model's replicas that are about to compute together.

`fit` makes them equal; `evaluate` and `predict` need them so.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

from syrtos.comm.communicator import Communicator
from syrtos.keras.features import local_steps
from syrtos.keras.replica import state

_KEPT = "_syrtos_equality"
# Comparing whole weights may take one part in so many of the time; in between so many bytes of each variable are
# compared.
_COST = 200
_HEAD = 4096


@dataclasses.dataclass
class _Equality:
    """The facts about the equality of a model's replicas.

    Attributes:
        trained: whether `fit` has trained them: from then on they are equal, or have diverged.
        compared: when they were compared last, s on `time.perf_counter`; None: never.
        took: how long that took, s.
    """

    trained: bool = False
    compared: float | None = None
    took: float = 0.0

    def is_due(self) -> bool:
        return self.compared is None or time.perf_counter() - self.compared >= _COST * self.took


def begin_training(comm: Communicator, model: Any) -> None:
    """Gives all replicas rank 0's state.

    Raises:
        OutOfStepError: workers have built different models.
    """
    variables = state.of_model(model)
    state.check_structure(comm, variables)
    state.broadcast(comm, variables)
    was_trained(model)


def was_trained(model: Any) -> None:
    """Notes that a model's replicas have been trained: from now on they are equal, or have diverged."""
    _equality_of(model).trained = True


def compute_equal(comm: Communicator, model: Any, name: str) -> None:
    """Makes sure that all replicas compute with equal weights.

    Before any `fit` all take rank 0's weights; after it unequal ones have diverged.

    The weights are compared whole when a method is called for the first time, and then so rarely that it costs at most
    one part in `_COST` of the time; every other call compares the beginning of each variable, which shows weights that
    were loaded on one rank only.

    Args:
        comm: the workers.
        model: has been built, or is by its first step.
        name: the method that is about to compute.

    Raises:
        DivergenceError: the model was trained by `fit`, and its replicas differ.
    """
    if rounds := local_steps.rounds():
        rounds.meet()
    known, variables = _equality_of(model), state.of_model(model)
    if comm.size == 1 or not variables:
        return
    began, whole = time.perf_counter(), any(comm.agree("compare whole weights?", float(known.is_due())))
    if whole:
        state.check_structure(comm, variables)
    if not state.are_equal(comm, [state.checksum(v, None if whole else _HEAD) for v in variables]):
        _unequal(comm, known.trained, variables, name)
    if whole:
        known.compared = time.perf_counter()
        known.took = known.compared - began


def _unequal(comm: Communicator, trained: bool, variables: list[Any], name: str) -> None:
    if trained:
        state.check_equal(comm, variables, 0)
        return
    state.broadcast(comm, variables)
    if comm.rank == 0:
        print(f"syrtos: the workers held different weights: `{name}` uses those of rank 0", file=sys.stderr)


def _equality_of(model: Any) -> _Equality:
    if getattr(model, _KEPT, None) is None:
        object.__setattr__(model, _KEPT, _Equality())
    return getattr(model, _KEPT)
