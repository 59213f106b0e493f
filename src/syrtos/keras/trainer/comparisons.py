"""Comparisons of a model's replicas while `fit` trains them: when due, and what is compared."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.keras import backend
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Variable

# The replicas are compared every so many steps, and at most for one part in so many of the time.
_CHECK_STEPS = 100
_CHECK_COST = 200


class Comparisons:
    """The comparisons of one `fit`, of which the first comes after its first step."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._checked = False
        self._since_check = 0
        self._interval = _CHECK_STEPS
        self._checked_at = time.perf_counter()

    def begin_anew(self) -> None:
        """Makes a comparison due after the next step, as after the first one."""
        self._checked = False

    def count(self, steps: int) -> None:
        """Counts steps that were made."""
        self._since_check += steps

    def is_due(self) -> bool:
        """Returns whether the replicas are to be compared now; the same on all workers."""
        chosen = self._session.options.check_every
        return bool(chosen) and (
            not self._checked or self._since_check >= (chosen if chosen > 0 else self._interval)
        )

    def compare(self, model: Model, without_metrics: bool, steps: int) -> None:
        """Compares the replicas, and sets how rarely that is done.

        Args:
            model: this worker's replica.
            without_metrics: whether each worker counts its own samples until the epoch ends.
            steps: the steps that were made, for the message.

        Raises:
            DivergenceError: the replicas differ.
        """
        started = time.perf_counter()
        comm, variables = equal_replicas(self._session, model, without_metrics)
        # A model that this worker alone trains has no replica.
        if comm.size == 1:
            self._checked, self._since_check = True, 0
            return
        with self._session.ledger.span("exchange"):
            backend.active().settle(model)
            state.check_equal(comm, variables, steps)
        # The largest times of all workers: their intervals must be equal, or they would not meet.
        took = max(comm.agree("cost of comparing", time.perf_counter() - started))
        training = max(comm.agree("time since comparing", started - self._checked_at))
        per_step = training / max(self._since_check, 1)
        self._interval = max(_CHECK_STEPS, math.ceil(_CHECK_COST * took / per_step))
        self._checked, self._since_check, self._checked_at = True, 0, time.perf_counter()


def equal_replicas(
    session: Session, model: Model, without_metrics: bool
) -> tuple[Communicator, list[Variable]]:
    """Returns the workers that must hold equal values, and the variables that must be equal.

    They are all workers and all variables, or those of an optimizer that the script has asked to
    reduce.
    """
    chosen = backend.active().exchanged_by(model)
    variables = state.of_model(model)
    if without_metrics:
        counts = set(map(id, state.of_metrics(model)))
        variables = [v for v in variables if id(v) not in counts]
    return chosen or (session.comm, variables)
