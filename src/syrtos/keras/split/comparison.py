"""The comparison of what a step computes from rows whole and split."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from syrtos.comm.communicator import Array, Communicator
from syrtos.keras.split.plan import Row, SplitPlan
from syrtos.keras.split.trial_step import StepOutcome

# The largest relative difference that rounding explains, by the bytes of the least precise dtype
# that a model computes with.
_ROUNDING = {8: 1e-4, 4: 1e-4, 2: 5e-2}
# A difference that counts as none: of a gradient, relative to all of them; of a variable, relative
# to its value in float32.
_NEAR_ZERO, _OF_VALUE = 1e-6, 5e-7
# How many times larger a value is that stands for none, as `best = 1e9`, than those that come.
_STAND_IN = 1e6
# The same of a log in a later comparison, relative to its size in the first one.
_OF_LOG = 1e-5


def bound_of(precision: int) -> float:
    """Returns the largest relative difference that counts as none.

    ``precision``: the bytes of the least precise dtype that the model computes with.
    """
    return _ROUNDING[precision]


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


def compare_values(
    kind: str, name: str, one: Array, other: Array, before: Array | None = None
) -> Row:
    """Returns a row of `syrtos verify`'s table; with ``before`` variables' changes are compared."""
    far = distance(one, other) if before is None else distance_of_changes(before, one, other)
    return Row(kind, name, size_of(one), size_of(other), far)


def size_of(value: Array) -> float:
    """Returns a number itself, or the norm of an array."""
    return (
        float(value)
        if np.ndim(value) == 0
        else float(np.linalg.norm(np.asarray(value, np.float64)))
    )


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


def distance_of_changes(before: Array, one: Array, other: Array) -> float:
    """Returns the difference of two changes of a variable, relative to the first.

    A difference that rounding makes of the variable itself counts as none.
    """
    if np.shape(one) != np.shape(other) or np.shape(before) != np.shape(one):
        return distance(one, other)
    start, one, other = (np.asarray(value, np.float64) for value in (before, one, other))
    # A best that begins at infinity, or at a billion: beside such a change the values themselves
    # would not be seen.
    far_from_both = np.abs(start) > _STAND_IN * np.maximum(np.abs(one), np.abs(other))
    start = np.where(far_from_both | ~np.isfinite(start), 0.0, start)
    return distance(one - start, other - start, _OF_VALUE * float(np.linalg.norm(one)))


def distance(one: Array, other: Array, allowed: float = 1e-7) -> float:
    """Returns the relative difference by norm.

    Equal infinities and NaN count as equal, and a difference of up to ``allowed`` as none.
    """
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if a.shape != b.shape:
        return float("inf")
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    difference = float(np.linalg.norm(a[finite] - b[finite]))
    size = float(np.linalg.norm(a[finite]))
    if difference <= allowed:
        return min(difference / size, allowed) if size else 0.0
    return difference / size if size else float("inf")


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
