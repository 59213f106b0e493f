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


def is_asked() -> bool:
    """Whether gradients are checked before each update (`--on-nan stop`)."""
    return world.current().options.on_nan == "stop"


def names_of(optimizer: Any, grads: Sequence[Any]) -> list[str]:
    """Names for an optimizer's gradients: of its variables, or numbers where it has more of them."""
    variables = getattr(optimizer, "_trainable_variables", ())
    if len(variables) != len(grads):
        return [f"number {index}" for index in range(len(grads))]
    return [f"`{getattr(variable, 'path', variable.name)}`" for variable in variables]


def check(comm: Communicator, names: Sequence[str], finite: Sequence[bool], own: Sequence[bool], update: int) -> None:
    """All workers call it together, where not all of ``finite`` hold.

    Args:
        comm: the workers.
        names: of the gradients.
        finite: for each gradient of the global batch whether all its numbers are finite; equal on all workers.
        own: the same for this worker's share.
        update: number of the update, from 1.

    Raises:
        NonFiniteError: names the first gradient, and the workers whose share made it so.
    """
    everyone = comm.allgather_object([bool(value) for value in own])
    ranks = [rank for rank, flags in enumerate(everyone) if not all(flags)]
    wrong = [name for name, flag in zip(names, finite, strict=True) if not flag]
    of = f"the share{'s' * (len(ranks) > 1)} of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    cause = f"in {of}" if ranks else "in the sum over the workers, whose shares are finite"
    others = f", and of {len(wrong) - 1} other variables" if len(wrong) > 1 else ""
    raise NonFiniteError(
        f"Update {update} was not made: the gradient of {wrong[0]}{others} is NaN or infinite, {cause}. The trainable weights are those before it. Look at the "
        "batch, lower the learning rate, or clip what the loss divides by or takes a logarithm of. Without `--on-nan stop` training goes on, as in plain Keras."
    )


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
        if world.current().world.rank == 0:
            print(
                f"syrtos: the loss is {float(loss)} since batch {batch + 1} of epoch {epoch + 1}. `--on-nan stop` ends a run before it applies such "
                "gradients, and names the variable and the rank.",
                file=sys.stderr,
            )
