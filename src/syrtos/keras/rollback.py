"""`--on-nan rollback`: where a gradient is not finite, training goes on from earlier weights.

The weights have often gone wrong some updates before. As for PaLM (Chowdhery et al. 2022, arXiv:2204.02311, section
5.1) they go some hundred updates back, and on with the data that follow. Metrics, callbacks and the learning rate are
not taken back: they belong to the batches, which go on.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy.typing as npt

from syrtos.comm import compression, world
from syrtos.errors import NonFiniteError
from syrtos.keras import backend, finite, keras_internals, snapshot, state

# Steps from one copy to the next; the older one of two is gone back to.
_STEPS = 100
# So often the same copy is gone back to; then it is as wrong as what came after it.
_MOST = 3


@dataclasses.dataclass
class _Copy:
    step: int
    values: list[npt.NDArray[Any]]
    used: int = 0


def is_asked() -> bool:
    """Returns whether this run goes back to earlier weights."""
    return world.current().options.on_nan == "rollback"


class Rollback:
    """Two copies of a model and its optimizer in this worker's memory.

    Every worker makes them, and goes back to them, at the same steps.
    """

    def __init__(self, model: Any) -> None:
        """Begins without copies, at the beginning of a `fit` and before its first step."""
        self._model = model
        self._left_out = finite.number_left_out()
        self._copies: list[_Copy] = []

    def batch_ended(self, step: int) -> None:
        """Goes back if the last call of the training function has left out an update; else makes a copy if it is time.

        ``step`` counts the steps of this `fit`.

        Raises:
            NonFiniteError: going back has not helped.
        """
        left_out, self._left_out = finite.number_left_out() - self._left_out, finite.number_left_out()
        if left_out:
            self._go_back(step)
        elif not self._copies or step - self._copies[-1].step >= _STEPS:
            self._copies = [*self._copies[-1:], _Copy(step, [state.memory_of(v).copy() for v in self._variables()])]

    def _variables(self) -> list[Any]:
        """Returns the variables that an update changes, and statistics that were made with these weights.

        They are weights and the optimizer's state, without its learning rate.
        """
        backend.active().settle(self._model)
        optimizers = snapshot.optimizers_of(self._model)
        found = [*self._model.variables, *snapshot.slots_of(self._model), *backend.active().buffers_of(self._model)]
        left_out = set(map(id, state.of_metrics(self._model)))
        left_out |= {id(keras_internals.rate_of(getattr(one, "inner_optimizer", one))) for one in optimizers}
        return state.unique([v for v in found if id(v) not in left_out])

    def _go_back(self, step: int) -> None:
        if not self._copies:
            return  # the first batches: there is nothing to go back to
        copy = self._copies[0]
        copy.used += 1
        if copy.used > _MOST:
            raise NonFiniteError(
                f"A gradient is not finite again, after training went back to step {copy.step} for the third time. Lower the learning rate, or look at the "
                "batches from there on. Where single batches are wrong, `--on-nan skip` leaves them out."
            )
        for variable, value in zip(self._variables(), copy.values, strict=True):
            backend.active().write(variable, value)
        self._copies = [copy]
        compression.forget(state.held_objects(snapshot.trainable(self._model)))  # it is of the weights that are left
        if world.current().world.rank == 0:
            print(
                f"syrtos: after step {step} of this fit, weights and optimizer went back to step {copy.step}; training goes on with the next batch",
                file=sys.stderr,
            )
