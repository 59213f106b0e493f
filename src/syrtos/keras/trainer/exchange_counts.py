"""The mean exchange of a step of `fit`, for the forecast in the report of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.keras import backend
from syrtos.keras.features import registry, sharding
from syrtos.keras.trainer import exchange_plan

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model


class ExchangeCounts:
    """The exchanges of one `fit`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before = (0, 0, 0)

    def begin(self) -> None:
        """Begins to count."""
        self._before = _counts(self._session.comm)

    def say(self, comm: Communicator, model: Model, steps: int) -> None:
        """Writes the mean exchange of a step to the ledger.

        With it goes the number of bytes that `--shard-update` would divide.

        Args:
            comm: the workers that hold equal replicas.
            model: the model that was trained.
            steps: the steps that were counted.
        """
        if not steps or self._session.options.asynchronous:
            return
        if backend.computes_global_batches():
            exchange_plan.tell(model.trainable_variables, list)
        each = [
            (now - before) / steps for now, before in zip(_counts(comm), self._before, strict=True)
        ]
        optimizer = getattr(model, "optimizer", None)
        # A worker that trains apart has an optimizer of its own, which can't be divided.
        whole = sharding.is_asked() or registry.trains_apart()
        state_bytes = 0 if whole else sharding.divisible(optimizer)
        self._session.ledger.say(
            meetings=round(each[0], 2),
            gradient_sums=round(each[1], 2),
            gradient_bytes=round(each[2]),
            optimizer_state=state_bytes,
        )


def _counts(comm: Communicator) -> tuple[int, int, int]:
    """Returns meetings, sums, and the bytes of these."""
    return comm.meetings, comm.sums, comm.summed
