"""The equality of a model's replicas that are about to compute together.

`fit` makes them equal; `evaluate` and `predict` need them so.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import TYPE_CHECKING

from syrtos.comm.communicator import Communicator
from syrtos.keras.features import registry
from syrtos.keras.replica import state
from syrtos.records import record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Variable

# Comparing whole weights may take one part in so many of the time; in between so many bytes of each
# variable are compared.
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


def begin_training(comm: Communicator, model: Model) -> None:
    """Gives all replicas rank 0's state.

    Raises:
        OutOfStepError: workers have built different models.
    """
    variables = state.of_model(model)
    state.check_structure(comm, variables)
    state.broadcast(comm, variables)
    was_trained(model)


def was_trained(model: Model) -> None:
    """Notes that a model's replicas were trained: from now on they are equal, or have diverged."""
    record_of(model, _Equality).trained = True


def compute_equal(comm: Communicator, model: Model, name: str) -> None:
    """Makes sure that all replicas compute with equal weights.

    Before any `fit` all take rank 0's weights; after it unequal ones have diverged.

    Args:
        comm: the workers.
        model: has been built, or is by its first step.
        name: the method that is about to compute.

    Raises:
        DivergenceError: the model was trained by `fit`, and its replicas differ.
    """
    for feature in registry.active():
        feature.meet()
    known, variables = record_of(model, _Equality), state.of_model(model)
    if comm.size == 1 or not variables:
        return
    # Whole weights are compared when a method is called for the first time, and then so rarely that
    # it costs at most one part in `_COST` of the time. Every other call compares the beginning of
    # each variable: that shows weights which were loaded on one rank only.
    began, whole = (
        time.perf_counter(),
        any(comm.agree("compare whole weights?", float(known.is_due()))),
    )
    if whole:
        state.check_structure(comm, variables)
    if not state.are_equal(comm, [state.checksum(v, None if whole else _HEAD) for v in variables]):
        _take_weights_of_rank_0(comm, known.trained, variables, name)
    if whole:
        known.compared = time.perf_counter()
        known.took = known.compared - began


def _take_weights_of_rank_0(
    comm: Communicator, trained: bool, variables: list[Variable], name: str
) -> None:
    # Trained replicas have diverged: this raises the error that names the first variable.
    if trained:
        state.check_equal(comm, variables, 0)
        return
    state.broadcast(comm, variables)
    if comm.rank == 0:
        print(
            f"syrtos: the workers held different weights: `{name}` uses those of rank 0",
            file=sys.stderr,
        )
