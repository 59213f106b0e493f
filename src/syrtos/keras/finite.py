"""Numbers that go wrong: a gradient that is not finite ends the run before it is applied, and a loss that is not is said once."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.errors import NonFiniteError
from syrtos.keras import backend


def is_asked() -> bool:
    """Whether gradients are checked before each update (`--on-nan stop`)."""
    return world.current().options.on_nan == "stop"


def check(
    comm: Communicator | None, variables: Sequence[Any], finite: Sequence[bool], own: Sequence[bool], update: int
) -> None:
    """Called where not all of ``finite`` hold.

    Args:
        comm: the workers, which then all call it together; None where this worker's own gradients are not those that were reduced, or stay its own.
        variables: of the gradients.
        finite: for each gradient of the global batch whether all its numbers are finite; equal on all workers of ``comm``.
        own: the same for this worker's share.
        update: number of the update, from 1.

    Raises:
        NonFiniteError: names the first gradient, and the workers whose share made it so.
    """
    wrong = [index for index, flag in enumerate(finite) if not flag]
    name = _name(variables[wrong[0]]) if len(variables) == len(finite) else f"number {wrong[0]}"
    others = f", and of {len(wrong) - 1} more," * (len(wrong) > 1)
    raise NonFiniteError(
        f"Update {update} was stopped: the gradient of {name}{others} is NaN or infinite{_cause(comm, all(own))}, and was not applied. "
        "Look at the batch, lower the learning rate, or keep what the loss divides by, or takes a logarithm of, away from 0. Without `--on-nan stop` training "
        "goes on, as in plain Keras."
    )


def _name(variable: Any) -> str:
    return f"`{getattr(variable, 'path', variable.name)}`"


def _cause(comm: Communicator | None, is_finite: bool) -> str:
    """The workers whose shares are not finite."""
    if comm is None or comm.size == 1:
        return ""
    everyone = comm.allgather_object((world.current().world.rank, is_finite))
    ranks = [str(rank) for rank, share_is_finite in everyone if not share_is_finite]
    if not ranks:
        return ", in the sum over the workers, whose shares are finite"
    return f", in the share of rank {ranks[0]}" if len(ranks) == 1 else f", in the shares of ranks {', '.join(ranks)}"


class Notice:
    """Says once in a `fit` that its loss is not finite any more."""

    def __init__(self) -> None:
        self._said = False

    def look(self, epoch: int, batch: int, logs: Mapping[str, Any] | None) -> None:
        """After a batch, at numbers that are on the host already."""
        loss = (logs or {}).get("loss")
        if self._said or not isinstance(loss, numbers.Real) or math.isfinite(loss):
            return
        self._said = True
        session = world.current()
        if session.world.rank == 0:
            advice = ""
            if backend.active().name != "jax" and not session.options.servers and not is_asked():
                advice = (
                    " `--on-nan stop` ends a run before it applies such gradients, and names the variable and the rank."
                )
            print(
                f"syrtos: the loss is {float(loss)} since batch {batch + 1} of epoch {epoch + 1}.{advice}",
                file=sys.stderr,
            )
