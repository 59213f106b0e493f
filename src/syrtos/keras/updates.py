"""An optimizer's update, from a step's gradients to Keras's own methods, and an optimizer's record.

Keras calls a chain of methods between the gradients of a step and the assignment of weights. The
wrappers of these methods find each other's findings here, and leave none on the optimizer, which
Keras tracks and saves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from syrtos.comm.world import Session
from syrtos.records import record_of


@dataclasses.dataclass
class Update:
    """A single update of an optimizer.

    Attributes:
        optimizer: the one that makes it.
        variables: those of the gradients that are reduced, in their order; empty where gradients
            are reduced outside of an update.
        reduction: the rule by which they are reduced: a `Reduction` on TensorFlow, a `Communicator`
            on torch; None where they are not.
        is_reduced: whether the gradients that the optimizer is given have been reduced and checked
            already.
        is_for_script: whether the script looks at the reduced gradients, and gives them to another
            update.
        gives_parts: whether the reduced gradients are this worker's parts of them, as with
            `--shard-update` between hosts.
    """

    optimizer: object
    # Of Keras or of the framework: each backend knows its own.
    variables: Sequence[Any] = ()
    reduction: object = None
    is_reduced: bool = False
    is_for_script: bool = False
    gives_parts: bool = False

    @contextlib.contextmanager
    def taking_as_given(self) -> Iterator[None]:
        """Context manager: gradients given to the optimizer inside are not reduced any more."""
        before, self.is_reduced = self.is_reduced, True
        try:
            yield
        finally:
            self.is_reduced = before


class _UpdateStack(threading.local):
    """The updates that this thread is in, one inside of the other."""

    def __init__(self) -> None:
        self.updates: list[Update] = []


_stack = _UpdateStack()


@contextlib.contextmanager
def update(optimizer: object, variables: Iterable[Any]) -> Iterator[Update]:
    """Context manager of one update: inside, `update_of` finds it by its optimizer."""
    _stack.updates.append(Update(optimizer, list(variables)))
    try:
        yield _stack.updates[-1]
    finally:
        _stack.updates.pop()


def update_of(optimizer: object) -> Update:
    """Returns the update that this optimizer makes now, else an update without variables."""
    found = (one for one in reversed(_stack.updates) if one.optimizer is optimizer)
    return next(found, None) or Update(optimizer)


class AskedReductions:
    """The optimizers and loops of this process that the run or script asked to reduce gradients.

    Attributes:
        all_optimizers: whether every optimizer of Keras reduces, as `syrtos run` wants it.
        by_tape: whether the script's own loops reduce with a `DistributedGradientTape`.
    """

    def __init__(self, session: Session) -> None:
        self.all_optimizers = self.by_tape = False


@dataclasses.dataclass
class OptimizerRecord:
    """The facts that are noted of an optimizer from one update to the next.

    Attributes:
        reduction: the rule by which the script has asked it to reduce its gradients, of the class
            that the backend has for it; None where it has not.
        is_equal: whether all workers hold the same state of it.
        accumulates_whole_batches: whether it accumulates gradients of whole batches, and not those
            of this worker's shares.
        computed: returns whether the function that runs now is the one in which the script has
            computed the gradients of the next update, which are reduced already; None where the
            script has computed none.
    """

    reduction: object = None
    is_equal: bool = False
    accumulates_whole_batches: bool = False
    computed: Callable[[], bool] | None = None


def set_reduction(optimizer: object, reduction: object) -> None:
    """Notes the rule by which an optimizer reduces, also where not all were asked to reduce."""
    # Scripts hold a `LossScaleOptimizer`, or the one inside of it: both get the rule.
    for each in (optimizer, getattr(optimizer, "inner_optimizer", optimizer)):
        record_of(each, OptimizerRecord).reduction = reduction


def accumulates(optimizer: object) -> bool:
    """Returns whether an optimizer accumulates the gradients of several steps for an update."""
    return bool(getattr(optimizer, "gradient_accumulation_steps", None))
