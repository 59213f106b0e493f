"""The values that a step has computed, and the comparison of two of them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from syrtos.comm.communicator import Array, Communicator
from syrtos.dialects.estimator.plan import SplitPlan
from syrtos.keras.split.comparison import Row, compare_values, distance, distance_of_changes

# A difference of a gradient that counts as none, relative to all of them.
_NEAR_ZERO = 1e-6
# The same of a log in a later comparison, relative to its size in the first one.
_OF_LOG = 1e-5


@dataclasses.dataclass
class Assigned:
    """A variable that a step has assigned.

    Attributes:
        name: a name for a person.
        before, after: its values.
    """

    name: str
    before: Array
    after: Array


@dataclasses.dataclass
class StepOutcome:
    """The values that a step has computed.

    Attributes:
        gradients: those that optimizers were given, in order, with the names of their variables in
            ``gradient_names``.
        logs: the numbers that the step returned, in order, with their names in ``log_names``, and
            this worker's own in ``own_logs``.
        assigned: the assigned variables by their ids, in the order of the first assignments.
        own: by the variable's id, its value on this worker before the workers exchanged it.
        error: why the step did not come to its end; empty if it did.
    """

    gradients: list[Array] = dataclasses.field(default_factory=list)
    gradient_names: list[str] = dataclasses.field(default_factory=list)
    logs: list[Array] = dataclasses.field(default_factory=list)
    log_names: list[str] = dataclasses.field(default_factory=list)
    own_logs: list[Array] = dataclasses.field(default_factory=list)
    assigned: dict[int, Assigned] = dataclasses.field(default_factory=dict)
    own: dict[int, Array] = dataclasses.field(default_factory=dict)
    error: str = ""


class StepTrial(Protocol):
    """A step on some rows of the first batch, which leaves no trace.

    Attributes:
        left_out: the rows that it computes, such as ``64 of its 512 rows``, if all would cost too
            much; else empty.
    """

    left_out: str

    def compute_as_one_process(self, all_rows: bool) -> StepOutcome:
        """Computes the step on each worker as one process does.

        It computes some rows, or ``all_rows`` of the batch.
        """
        ...

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        """Computes the step as the workers do together."""
        ...

    def with_more_rows(self) -> StepTrial | None:
        """Returns the same step on more rows, if there are more and these are small.

        All workers call it together.
        """
        ...

    def has_all_rows(self) -> bool:
        """Returns whether it computes all rows of the batch, on all workers."""
        ...

    def backwards(self) -> StepTrial:
        """Returns the same step on the same rows, from the last to the first."""
        ...

    def precision(self) -> int:
        """Returns the bytes of the least precise dtype that the step has computed with so far."""
        ...

    def zeros_raised(self) -> contextlib.AbstractContextManager[list[str]]:
        """Returns a context in which small variables that are 0 are 1.

        It is made by `between_steps.zeros_raised`.
        """
        ...


def norm_of(gradients: Sequence[Array]) -> float:
    """Returns the norm of all gradients together, computed in float64."""
    return float(np.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in gradients)))


def rows_of(whole: StepOutcome, split: StepOutcome) -> list[Row]:
    """Returns what was compared, in the order of gradients, numbers and variables."""
    pairs = [
        *(
            ("gradient", name, a, b)
            for name, a, b in zip(
                whole.gradient_names, whole.gradients, split.gradients, strict=False
            )
        ),
        *(
            ("log", name, a, b)
            for name, a, b in zip(whole.log_names, whole.logs, split.logs, strict=False)
        ),
        *(
            ("variable", one.name, one.after, split.assigned[key].after)
            for key, one in whole.assigned.items()
            if key in split.assigned
        ),
    ]
    return [compare_values(kind, name, a, b) for kind, name, a, b in pairs]


def compare_outcomes(
    comm: Communicator, whole: StepOutcome, split: StepOutcome, bound: float, plan: SplitPlan
) -> tuple[list[tuple[str, int]], float]:
    """Returns where both ways differ by more than the bound on any worker.

    It also returns the largest difference of the rest.

    Args:
        comm: the workers, which all call this together and get the same.
        whole: what this worker has computed as one process.
        split: what the workers have computed together.
        bound: the largest relative difference that counts as none.
        plan: has the scales of an earlier comparison, if there was one.

    Returns:
        Places as pairs: ``gradient``, ``log`` or ``variable`` with the index among these, or
        ``form`` with -1, where the two differ in what they have computed.
    """
    shape = [len(outcome.gradients) for outcome in (whole, split)] + [
        len(outcome.logs) for outcome in (whole, split)
    ]
    shape += [each.name for outcome in (whole, split) for each in outcome.assigned.values()]
    everyone = comm.allgather_object(shape)
    if (
        any(other != everyone[0] for other in everyone)
        or shape[0] != shape[1]
        or shape[2] != shape[3]
    ):
        return [("form", -1)], float("inf")
    scale = _NEAR_ZERO * max(norm_of(whole.gradients), plan.scale)
    allowed = [max(1e-7, _OF_LOG * size) for size in plan.log_scales] or [1e-7] * len(whole.logs)
    found = {
        ("gradient", i): distance(a, b, scale)
        for i, (a, b) in enumerate(zip(whole.gradients, split.gradients, strict=True))
    }
    logs = zip(
        whole.logs, split.logs, itertools.chain(allowed, itertools.repeat(1e-7)), strict=False
    )
    # The lengths of logs are equal; only the allowances may be fewer, of an earlier step with other
    # logs.
    found |= {("log", i): distance(a, b, least) for i, (a, b, least) in enumerate(logs)}
    keys = list(whole.assigned)
    for key in {**whole.assigned, **split.assigned}:
        # A step may assign a variable one way alone, which is no difference if it stays as it was.
        one, other = whole.assigned.get(key), split.assigned.get(key)
        if one is None or other is None:
            left = one or other
            assert left is not None
            far = 0.0 if np.array_equal(left.before, left.after, equal_nan=True) else float("inf")
        else:
            far = distance_of_changes(one.before, one.after, other.after)
        if key not in keys:
            keys.append(key)
        found["variable", keys.index(key)] = far
    worst = comm.allgather(
        np.nan_to_num(np.asarray([[*found.values()]], np.float64), nan=np.inf)
    ).max(axis=0)
    differs = [place for place, far in zip(found, worst, strict=True) if not far <= bound]
    return differs, max((float(far) for far in worst if far <= bound), default=0.0)


def describe_difference(
    comm: Communicator, whole: StepOutcome, split: StepOutcome, places: Sequence[tuple[str, int]]
) -> str:
    """Describes the first difference for a person."""
    what, index = places[0]
    if what == "form":
        return "the workers assign, or give optimizers, different things"
    text = "the gradients of a part of the rows do not add up to those of the batch"
    if what == "log":
        one, other = whole.logs[index], split.logs[index]
        text = (
            f"the `{whole.log_names[index]}` that it returns is {_short(one)} for some rows"
            f" together, and {_short(other)} for parts of them"
        )
    if what == "variable":
        found = list({**whole.assigned, **split.assigned}.items())[index : index + 1]
        for key, either in found:
            one, other = (
                whole.assigned.get(key, either).after,
                split.assigned.get(key, either).after,
            )
            text = (
                f"`{either.name}` becomes {_short(one)} by some rows together, and {_short(other)}"
                " by parts of them"
            )
    return str(comm.broadcast_object(text, 0))


def _short(value: Array) -> str:
    value = np.asarray(value, np.float64)
    return (
        f"{float(value):.6g}"
        if value.ndim == 0
        else f"an array with the sum {float(value.sum()):.6g}"
    )
