"""Decides how a step is split over the workers, by computing some rows of its first batch both ways.

What Keras itself computes is known to be right on a share of the rows: losses and metrics row by row, gradients as
means. Of anything else (a `train_step`, a layer or an optimizer of the script's own) nothing is assumed: before the
first batch counts, each worker computes some rows of all workers whole, as one process does, then they compute them
split, and everything is put back. Where both agree, the step is split. Where a sum, a maximum or the like makes them
agree, that becomes the rule. Where nothing does, the step is not split: each worker computes the whole batch, which is
right, and no faster than one worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.errors import OutOfStepError, SyrtosError
from syrtos.keras import keras_internals
from syrtos.keras.split import whole_batch
from syrtos.keras.split.python_state import Change
from syrtos.observe.ledger import verified_path

Array = npt.NDArray[Any]
Rule = Literal["equal", "sum", "mean", "max", "min"]
Note = Callable[[Sequence[Any], Sequence[Any]], None]

# The largest relative difference that rounding explains, by the bytes of the least precise dtype that a model computes with.
_ROUNDING = {8: 1e-4, 4: 1e-4, 2: 5e-2}
# A difference that counts as none: of a gradient, relative to all of them; of a variable, relative to its value in float32.
_NEAR_ZERO, _OF_VALUE = 1e-6, 5e-7
# The same of a log in a later comparison, relative to its size in the first one.
_OF_LOG = 1e-5
# Rows of all workers that are computed both ways, and at least so many of each worker.
ROWS, ROWS_OF_EACH = 8, 2


@dataclasses.dataclass
class Row:
    """A number, gradient or variable of the first batch, computed both ways.

    Attributes:
        kind: ``gradient``, ``log``, ``output`` or ``variable``.
        name: a name for a person.
        whole, split: its value, or its norm, computed from some rows together and from parts of them.
        difference: the relative difference of the two, once the rule is applied.
        rule: the rule that makes both equal; empty for Keras's own way.
    """

    kind: str
    name: str
    whole: float
    split: float
    difference: float
    rule: str = ""


@dataclasses.dataclass
class Plan:
    """The way in which the steps of one function of a model are split.

    Attributes:
        decided: whether the first batch has been looked at.
        whole: why every worker computes the whole batch; empty where the step is split.
        gradients: what the workers' gradients become: their mean by samples, or their sum, where they are made;
            ``late``: their mean where an optimizer gets them.
        variables: how the workers' values of an assigned variable become one, by the variable's id; others have the
            rule of their kind.
        logs: how the workers' numbers that a step returns become one, by their place among them.
        difference: the largest relative difference between both ways; None where all parts are Keras's own.
        rows: everything that was compared.
        tried: whether it was made by a comparison, and shows what becomes of every variable that the step assigns.
        unproven: what `Unproven` said while the step was traced; autograph may raise it as another error.
        known: ids of variables of which no comparison is needed: of metrics, and of Keras's own layers.
        shown: ids of variables whose change was compared.
        scale: the norm of all gradients in the first comparison, and the size of each log: later ones may be near zero, where rounding is all that differs.
    """

    decided: bool = False
    whole: str = ""
    gradients: Literal["mean", "sum", "late"] = "mean"
    variables: dict[int, Rule] = dataclasses.field(default_factory=dict)
    logs: dict[int, Rule] = dataclasses.field(default_factory=dict)
    difference: float | None = None
    rows: list[Row] = dataclasses.field(default_factory=list)
    tried: bool = False
    unproven: str = ""
    known: set[int] = dataclasses.field(default_factory=set)
    shown: set[int] = dataclasses.field(default_factory=set)
    scale: float = 0.0
    log_scales: list[float] = dataclasses.field(default_factory=list)

    def shows(self, key: int) -> bool:
        """Returns whether it is known what the workers' values of a variable become."""
        return not self.tried or self.shows_now(key)

    def shows_now(self, key: int) -> bool:
        """Returns the same while the comparison that makes the plan is going on."""
        return key in self.known or key in self.shown or key in self.variables

    def adopt(self, other: Plan) -> None:
        """Takes over what a later comparison has shown; the functions that use this plan must be made anew."""
        self.whole, self.gradients = other.whole, other.gradients
        self.variables, self.logs, self.rows = other.variables, other.logs, other.rows
        self.shown |= other.shown

    def is_like(self, other: Plan) -> bool:
        """Returns whether both split steps alike."""
        same = self.whole == other.whole and self.gradients == other.gradients
        return same and self.variables == other.variables and self.logs == other.logs


class Unproven(Exception):
    """A step that is being traced assigns a variable of which no comparison has shown what becomes of the workers' values."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no comparison of rows has shown what becomes of `{name}`, which it assigns in some steps")


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
class Outcome:
    """The values that a step has computed.

    Attributes:
        gradients: those that optimizers were given, in order, with the names of their variables in ``gradient_names``.
        logs: the numbers that the step returned, in order, with their names in ``log_names``, and this worker's own in
            ``own_logs``.
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


class Trial(Protocol):
    """A step on some rows of the first batch, which leaves no trace."""

    def whole(self, all_rows: bool) -> Outcome:
        """Computes the step on each worker as one process does, on some rows, or on ``all_rows`` of the batch."""
        ...

    def split(self, plan: Plan) -> Outcome:
        """Computes the step as the workers do together."""
        ...

    def backwards(self) -> Trial:
        """Returns the same step on the same rows, from the last to the first."""
        ...

    def precision(self) -> int:
        """Returns the bytes of the least precise dtype that the step has computed with so far."""
        ...


def add_python_changes(outcome: Outcome, changes: Sequence[Change]) -> None:
    """Counts numbers that Python code has changed as variables that were assigned, for which there is no rule but to be equal."""
    for index, change in enumerate(changes):
        key = (
            -1 - zlib.crc32(change.name.encode()) - (index << 32)
        )  # no identity of an object, and the same on all workers
        outcome.assigned[key] = Assigned(change.name, change.before, change.after)


def rows_to_take(comm: Communicator, count: int) -> int:
    """Returns how many rows of this worker are computed both ways: at most some, and not equally many on all workers, where a sum and a mean look alike.

    Args:
        comm: the workers.
        count: rows that this worker has.
    """
    each = max(ROWS // comm.size, ROWS_OF_EACH)
    counts = comm.agree("rows of each worker", float(count))
    taken = [int(min(have, each + (rank == 0))) for rank, have in enumerate(counts)]
    if len(set(taken)) == 1 and taken[0] > 1:
        taken[-1] -= 1
    return taken[comm.rank]


def in_own_row(value: Array, rank: int, size: int) -> Array:
    """Returns a row for each worker, with zeros in all but this worker's.

    The result has the shape ``(size, *value.shape)``; its sum over the workers has the values of all.
    """
    rows = np.zeros((size, *np.shape(value)), np.asarray(value).dtype)
    rows[rank] = value
    return rows


class _Noting:
    """The function that notes the gradients given to optimizers, in place of an update; None: they make updates."""

    to: Note | None = None


@contextlib.contextmanager
def noting_gradients(note: Note) -> Iterator[None]:
    """Context manager: optimizers make no update; ``note`` is called with their gradients and variables."""
    _Noting.to = note
    try:
        yield
    finally:
        _Noting.to = None


def noting() -> Note | None:
    """Returns the function that notes the gradients that optimizers are given; None if they make updates."""
    return _Noting.to


def names_of(logs: Any, numbers: Sequence[Any]) -> list[str]:
    """Returns the keys under which a step returns its numbers; others are numbered from 1."""
    keys = {id(value): str(name) for name, value in logs.items()} if isinstance(logs, dict) else {}
    return [keys.get(id(number), str(index + 1)) for index, number in enumerate(numbers)]


# -- what needs no trial ---------------------------------------------------------------------------------


def is_split(session: Session) -> bool:
    """Returns whether each worker gets a part of each batch.

    With `--batch per-worker` it has batches of its own, whose losses are averaged.
    """
    return session.world.size > 1 and session.options.batch != "per-worker"


def naming_split(plan: Plan, session: Session, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of steps: where batches are split, its errors say so.

    A later batch than the first may have a form that the step refuses.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (StopIteration, SyrtosError):
            raise
        except Exception as error:
            told = getattr(error, "__notes__", [])
            if (
                is_split(session)
                and not plan.whole
                and type(error).__name__ != "OutOfRangeError"
                and not any(note.startswith(_SPLIT[:30]) for note in told)
            ):
                error.add_note(_SPLIT.format(workers=session.world.size))
            raise

    return call


_SPLIT = (
    "syrtos: batches are split over {workers} workers here, and this step had one worker's share of the rows. If it needs all rows of a batch, or one number "
    "of them, make that so from the first batch on (`drop_remainder=True`), on which it is tried; `syrtos verify` shows what was found out."
)


def fixed_batch(model: Any) -> str:
    """Returns why a model's batches can't be split: it keeps a state for each row. Empty where they can."""
    for layer in keras_internals.layers_of(model):
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_state") | hasattr(layer, "reset_states"):
            return f"the layer `{layer.name}` is stateful: it keeps a state for each row of the batch"
    return ""


def unknown_parts(model: Any, stock: bool, name: str) -> list[str]:
    """Returns the parts of a step that are not Keras's own, by names for a person.

    ``stock``: whether the step itself is Keras's own.
    """
    parts = [] if stock else [f"{type(model).__name__}.{name}"]
    own = (method for method in _METHODS if not whole_batch.is_of_keras(owner_of(type(model), method)))
    parts += [f"{type(model).__name__}.{method}" for method in own]
    shapes = [getattr(tensor, "shape", (None,)) for tensor in getattr(model, "inputs", None) or ()]
    parts += [f"the input of {shape[0]} rows" for shape in shapes if len(shape) and shape[0] is not None]
    layers = [layer for layer in keras_internals.layers_of(model) if layer is not model]
    parts += [f"the layer `{x.name}`" for x in layers if not is_known_layer(x)]
    operations = getattr(model, "operations", None) or ()
    known = {id(layer) for layer in layers}
    parts += [f"the operation `{x.name}`" for x in operations if id(x) not in known and not _is_known_operation(x)]
    optimizer = getattr(model, "optimizer", None)
    if name == "train_step" and optimizer is not None and not whole_batch.is_of_keras(type(optimizer)):
        parts.append(f"the optimizer {type(optimizer).__name__}")
    return parts


# The methods of a model in which a script may compute something of its own.
_METHODS = ("call", "compute_loss", "compute_metrics")


def owner_of(kind: type, name: str) -> type:
    """Returns the class that a method comes from."""
    return next((base for base in kind.__mro__ if name in vars(base)), kind)


def copies_of_weights(model: Any) -> list[Any]:
    """Returns variables that nothing trains and that have the shape of weights, as averages of them have: zeros among these may stay as they are."""
    shapes = {tuple(variable.shape) for variable in model.trainable_variables}
    return [v for v in model.non_trainable_variables if len(v.shape) and tuple(v.shape) in shapes]


def is_known_layer(layer: Any) -> bool:
    """Returns whether a layer is Keras's own, with nothing of the script's in it."""
    kind = type(layer)
    if not whole_batch.is_of_keras(kind) or kind.__name__ in ("Lambda", "TorchModuleWrapper", "TFSMLayer", "JaxLayer"):
        return False
    axes = getattr(layer, "axis", None)
    if axes == 0 or (isinstance(axes, list | tuple) and 0 in axes):
        return False
    return all(map(_is_known_value, (value for name, value in vars(layer).items() if not name.startswith("_"))))


def _is_known_value(value: Any) -> bool:
    """Returns whether an attribute of a layer is known: no function or object of the script's own.

    Such an attribute may be e.g. an activation or a regularizer.
    """
    if not callable(value) or isinstance(value, type):
        return True
    return whole_batch.is_of_keras(value) or whole_batch.is_of_keras(type(value))


def _is_known_operation(operation: Any) -> bool:
    return hasattr(operation, "stateful") or type(operation).__name__ in _BY_ELEMENT


# Operations of functional models that leave rows apart (seen in Keras 3.15.1).
_BY_ELEMENT = frozenset(
    {
        "Absolute", "Add", "Cast", "Clip", "Divide", "Exp", "Log", "Maximum", "Minimum", "Multiply", "Negative", "Power", "Relu", "Sigmoid", "Softplus",
        "Sqrt", "Square", "Subtract", "Tanh", "TrueDivide",
    }
)  # fmt: skip


# -- the trial -------------------------------------------------------------------------------------------


def bound_of(precision: int) -> float:
    """Returns the largest relative difference that counts as none.

    ``precision``: the bytes of the least precise dtype that the model computes with.
    """
    return _ROUNDING[precision]


def decide_outputs(plan: Plan, trial: Trial, session: Session) -> None:
    """Fills in the plan of a function that predicts, as `decide` does for other functions.

    It is split if its outputs, the ``logs`` of the trial, are the same from rows whole and split.
    """
    comm = session.comm
    whole = _whole(plan, trial, comm)
    if whole is None:
        return
    split = trial.split(plan)
    if failed := _any_failed(comm, split):
        plan.whole = f"it fails on a part of the batch: {failed}"
        return
    differs, plan.difference = _compare_outcomes(comm, whole, split, _ROUNDING[trial.precision()], plan)
    plan.rows = [dataclasses.replace(row, kind="output") for row in _rows(whole, split) if row.kind == "log"]
    if any(what == "log" for what, _ in differs):
        plan.whole = "predictions of a part of the rows are not those of the batch"
    else:
        _note_shown(plan, whole, split)


def decide(plan: Plan, trial: Trial, session: Session) -> None:
    """Fills in the plan; all workers call this together and end with the same plan.

    Args:
        plan: that of the function whose first batch this is.
        trial: runs the step.
        session: the workers.
    """
    comm = session.comm
    whole = _whole(plan, trial, comm)
    if whole is None:
        return
    bound = _ROUNDING[trial.precision()]
    differs: list[tuple[str, int]] = []
    split = Outcome()
    for gradients in ("mean", "sum", "late"):
        plan.gradients = gradients
        split = trial.split(plan)
        if failed := _any_failed(comm, split):
            plan.whole = f"it fails on a part of the batch: {failed}"
            return
        differs, plan.difference = _compare_outcomes(comm, whole, split, bound, plan)
        plan.rows = _rows(whole, split)
        if gradients == "sum":
            for row in plan.rows:
                row.rule = "sum" if row.kind == "gradient" else row.rule
        if not any(what == "gradient" for what, _ in differs):
            break
    else:
        plan.whole = _describe_difference(comm, whole, split, differs)
        return
    rest = [place for place in differs if not _find_rule(plan, comm, whole, split, place, bound)]
    plan.whole = _describe_difference(comm, whole, split, rest) if rest else _ambiguous(plan, comm, whole, split)
    if not plan.whole and {"max", "min"} & {*plan.variables.values(), *plan.logs.values()}:
        _try_again(plan, trial, comm, bound)
    if not plan.whole:
        _note_shown(plan, whole, split)


def confirm(plan: Plan, trial: Trial, session: Session) -> bool:
    """Returns whether a later batch agrees with the plan; all workers call this together. A plan that it does not agree with is to be made anew.

    Args:
        plan: of the function.
        trial: runs its step on rows of the batch.
        session: the workers.
    """
    comm = session.comm
    whole = trial.whole(False)
    if _any_failed(comm, whole):
        whole = trial.whole(True)
        if _any_failed(comm, whole):
            return True  # an error of the script, which the step itself will raise
    split = trial.split(plan)
    if _any_failed(comm, split):
        return False
    differs, far = _compare_outcomes(comm, whole, split, _ROUNDING[trial.precision()], plan)
    if not differs and not _ambiguous(plan, comm, whole, split):
        plan.difference = max(plan.difference or 0.0, far)
        plan.shown |= {key for key, one in split.assigned.items() if not _is_same(one)}
        return True
    return False


def _whole(plan: Plan, trial: Trial, comm: Communicator) -> Outcome | None:
    """Returns what one process computes; None where it fails, which the plan says then."""
    whole = trial.whole(False)
    if _any_failed(comm, whole):  # a function may need as many rows as the script gives it
        whole = trial.whole(True)
        if failed := _any_failed(comm, whole):  # an error of the script its first step will raise
            plan.whole = f"it could not be tried: {failed}"
            return None
    return whole


def _note_shown(plan: Plan, whole: Outcome, split: Outcome) -> None:
    """Notes what the comparison has shown, for later ones."""
    plan.tried = True
    plan.shown |= {key for key, one in split.assigned.items() if not _is_same(one)}
    if not plan.scale:
        plan.scale = _norm_of(whole.gradients)
        plan.log_scales = [_size(log) for log in whole.logs]
    for index, (log, own) in enumerate(zip(whole.logs, split.own_logs, strict=False)):
        # A count of rare rows that were not among these is a sum, and `any` of them a maximum.
        kind = np.asarray(log).dtype.kind
        if kind in "iub" and index not in plan.logs and not np.any(log) and not np.any(own):
            plan.logs[index] = "max" if kind == "b" else "sum"


def _ambiguous(plan: Plan, comm: Communicator, whole: Outcome, split: Outcome) -> str:
    """Says that a variable is assigned and stays as it was: then any rule fits, and nothing is shown. Empty where there is none."""
    names = [
        one.name
        for key, one in split.assigned.items()
        if key in split.own and not plan.shows_now(key) and _is_same(one) and _is_same(whole.assigned.get(key, one))
    ]
    of_all = comm.allgather_object(names)
    found = [name for name in of_all[0] if all(name in other for other in of_all)]
    return (
        f"`{found[0]}`, which it assigns, does not change on the rows of the first batch, so they do not show what it becomes"
        if found
        else ""
    )


def _is_same(one: Assigned) -> bool:
    return bool(np.array_equal(one.before, one.after, equal_nan=one.before.dtype.kind == "f"))


def _norm_of(gradients: Sequence[Array]) -> float:
    return float(np.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in gradients)))


def _try_again(plan: Plan, trial: Trial, comm: Communicator, bound: float) -> None:
    """Tries the plan once more with the rows in another order, and gives up the split if both ways differ then.

    A maximum or minimum may fit by chance: of two workers a value of the first row is always the largest or the least.
    """
    other = trial.backwards()
    whole, split = other.whole(False), other.split(plan)
    failed = _any_failed(comm, whole) or _any_failed(comm, split)
    differs = [] if failed else _compare_outcomes(comm, whole, split, bound, plan)[0]
    if failed or differs:
        plan.whole = failed or _describe_difference(comm, whole, split, differs)


def _rows(whole: Outcome, split: Outcome) -> list[Row]:
    """Returns what was compared, in the order of gradients, numbers and variables."""
    pairs = [
        *(
            ("gradient", name, a, b)
            for name, a, b in zip(whole.gradient_names, whole.gradients, split.gradients, strict=False)
        ),
        *(("log", name, a, b) for name, a, b in zip(whole.log_names, whole.logs, split.logs, strict=False)),
        *(
            ("variable", one.name, one.after, split.assigned[key].after)
            for key, one in whole.assigned.items()
            if key in split.assigned
        ),
    ]
    return [compare_values(kind, name, a, b) for kind, name, a, b in pairs]


def compare_values(kind: str, name: str, one: Array, other: Array, before: Array | None = None) -> Row:
    """Returns a row of `syrtos verify`'s table; with ``before`` the changes of a variable are compared."""
    far = _far(one, other) if before is None else _far_change(before, one, other)
    return Row(kind, name, _size(one), _size(other), far)


def _size(value: Array) -> float:
    """Returns a number itself, or the norm of an array."""
    return float(value) if np.ndim(value) == 0 else float(np.linalg.norm(np.asarray(value, np.float64)))


def _any_failed(comm: Communicator, outcome: Outcome) -> str:
    """Returns the error of the first worker whose step did not come to its end; empty if all did.

    Workers that failed alone have left the others in an exchange, which fails then.
    """
    for _ in range(3):
        try:
            comm.agree("the first batch was computed")
            break
        except OutOfStepError as error:
            outcome.error = outcome.error or str(error)
    errors = comm.allgather_object(outcome.error)
    own = [error for error in errors if error and "OutOfStepError" not in error]
    return next(iter(own or filter(None, errors)), "")


def _compare_outcomes(
    comm: Communicator, whole: Outcome, split: Outcome, bound: float, plan: Plan
) -> tuple[list[tuple[str, int]], float]:
    """Returns where both ways differ by more than the bound on any worker, and the largest difference of the rest."""
    shape = [len(outcome.gradients) for outcome in (whole, split)] + [len(outcome.logs) for outcome in (whole, split)]
    shape += [each.name for outcome in (whole, split) for each in outcome.assigned.values()]
    everyone = comm.allgather_object(shape)
    if any(other != everyone[0] for other in everyone) or shape[0] != shape[1] or shape[2] != shape[3]:
        return [("form", -1)], float("inf")
    scale = _NEAR_ZERO * max(_norm_of(whole.gradients), plan.scale)
    allowed = [max(1e-7, _OF_LOG * size) for size in plan.log_scales] or [1e-7] * len(whole.logs)
    found = {
        ("gradient", i): _far(a, b, scale)
        for i, (a, b) in enumerate(zip(whole.gradients, split.gradients, strict=True))
    }
    logs = zip(whole.logs, split.logs, itertools.chain(allowed, itertools.repeat(1e-7)), strict=False)
    found |= {("log", i): _far(a, b, least) for i, (a, b, least) in enumerate(logs)}
    keys = list(whole.assigned)
    for key in {**whole.assigned, **split.assigned}:
        one, other = whole.assigned.get(key), split.assigned.get(key)
        if one is None or other is None:
            left = one or other
            assert left is not None
            far = 0.0 if np.array_equal(left.before, left.after, equal_nan=True) else float("inf")
        else:
            far = _far_change(one.before, one.after, other.after)
        if key not in keys:
            keys.append(key)
        found["variable", keys.index(key)] = far
    worst = comm.allgather(np.nan_to_num(np.asarray([[*found.values()]], np.float64), nan=np.inf)).max(axis=0)
    differs = [place for place, far in zip(found, worst, strict=True) if not far <= bound]
    return differs, max((float(far) for far in worst if far <= bound), default=0.0)


def _far_change(before: Array, one: Array, other: Array) -> float:
    """Returns the difference of two changes of a variable, relative to the first.

    A difference that rounding makes of the variable itself counts as none.
    """
    if np.shape(one) != np.shape(other) or np.shape(before) != np.shape(one):
        return _far(one, other)
    start = np.asarray(before, np.float64)
    size = float(np.linalg.norm(np.asarray(one, np.float64)))
    return _far(np.asarray(one, np.float64) - start, np.asarray(other, np.float64) - start, _OF_VALUE * size)


def _far(one: Array, other: Array, allowed: float = 1e-7) -> float:
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


def _find_rule(
    plan: Plan, comm: Communicator, whole: Outcome, split: Outcome, place: tuple[str, int], bound: float
) -> bool:
    """Finds a rule that makes the workers' values those of one process, and adds it to the plan.

    Returns:
        Whether there is one.
    """
    what, index = place
    if what == "log":
        before, own, wanted = np.zeros(()), split.own_logs[index], whole.logs[index]
        rules: dict[int, Rule] = plan.logs
        key = index
    else:
        key = next((k for i, k in enumerate({**whole.assigned, **split.assigned}) if i == index), -1)
        one, other = whole.assigned.get(key), split.assigned.get(key)
        if one is None or other is None or key not in split.own:
            return False
        before, own, wanted = other.before, split.own[key], one.after
        rules = plan.variables
    rows = comm.allgather(np.asarray(own, np.float64)[np.newaxis])
    made = {rule: combine(rows, np.asarray(before, np.float64)) for rule, combine in _RULES.items()}

    def far(value: Array) -> float:
        return _far(wanted, value) if what == "log" else _far_change(before, wanted, value)

    fits = comm.allgather_object([rule for rule, value in made.items() if far(value) <= bound])
    chosen: Any = next((rule for rule in fits[0] if all(rule in of_each for of_each in fits)), None)
    if chosen is None:
        return False
    rules[key] = chosen
    name = whole.log_names[index] if what == "log" else whole.assigned[key].name
    for row in plan.rows:
        if (row.kind, row.name) == (what, name):
            made_of = made[chosen]
            row.rule, row.split, row.difference = chosen, _size(made_of), far(made_of)
    return True


_RULES: Mapping[Rule, Callable[[Array, Array], Array]] = {
    "equal": lambda rows, before: rows[0] if (rows == rows[0]).all() else np.full_like(rows[0], np.nan),
    "sum": lambda rows, before: before + (rows - before).sum(axis=0),
    "max": lambda rows, before: rows.max(axis=0),
    "min": lambda rows, before: rows.min(axis=0),
}


def _describe_difference(comm: Communicator, whole: Outcome, split: Outcome, places: Sequence[tuple[str, int]]) -> str:
    """Describes the first difference for a person."""
    what, index = places[0]
    if what == "form":
        return "the workers assign, or give optimizers, different things"
    text = "the gradients of a part of the rows do not add up to those of the batch"
    if what == "log":
        one, other = whole.logs[index], split.logs[index]
        text = f"the `{whole.log_names[index]}` that it returns is {_short(one)} for some rows together, and {_short(other)} for parts of them"
    if what == "variable":
        found = list({**whole.assigned, **split.assigned}.items())[index : index + 1]
        for key, either in found:
            one, other = whole.assigned.get(key, either).after, split.assigned.get(key, either).after
            text = f"`{either.name}` becomes {_short(one)} by some rows together, and {_short(other)} by parts of them"
    return str(comm.broadcast_object(text, 0))


def _short(value: Array) -> str:
    value = np.asarray(value, np.float64)
    return f"{float(value):.6g}" if value.ndim == 0 else f"an array with the sum {float(value.sum()):.6g}"


class Verifying:
    """Ends what `syrtos verify` runs after some batches, and writes down what was compared."""

    CALLS = 2  # of each function; then its data counts as at its end

    def __init__(self, model: Any, session: Session) -> None:
        """
        Args:
            model: whose function's calls are counted.
            session: the workers; in runs that are not of `syrtos verify` nothing is ended.
        """
        self._model, self._calls = model, 0
        self._is_asked = session.options.verify == "only"

    def count_call(self) -> None:
        """Counts a call with a batch of a data set.

        After `CALLS` calls the loop that makes them ends as after its last batch, by the flags that callbacks can set.
        """
        self._calls += 1
        if self._is_asked and self._calls >= self.CALLS:
            self._model.stop_training = self._model.stop_evaluating = self._model.stop_predicting = True

    @staticmethod
    def note(plan: Plan, session: Session, model: str, step: str, bound: float) -> None:
        """Adds a line about the plan to a file of the run directory, on rank 0."""
        if session.world.rank == 0 and session.options.run_dir:
            found = {
                "model": model,
                "step": step,
                "whole": plan.whole,
                "bound": bound,
                "rows": [dataclasses.asdict(row) for row in plan.rows],
            }
            with verified_path(Path(session.options.run_dir)).open("a") as file:
                file.write(json.dumps(found) + "\n")


def tell_change(plan: Plan, session: Session, what: str, step: int) -> None:
    """Says that a later batch has changed how a step is split; the record of the run has it too."""
    session.ledger.say(changed_at=step)
    if not (plan.whole or plan.variables or plan.gradients != "mean"):
        return  # a number that it returns becomes a sum, or no sum any more
    if session.world.rank == 0:
        how = (
            f"is not split any more: {plan.whole}. Each worker computes the whole batch"
            if plan.whole
            else "is split in another way"
        )
        print(
            f"syrtos: from step {step:,} on {what} {how}: in this batch the workers would compute something else than one process. Earlier steps that did, "
            "between two comparisons, may differ from those of one process.",
            file=sys.stderr,
        )


def tell(plan: Plan, session: Session, what: str) -> None:
    """Says once that a step is not split, and why.

    The record of the run has that too, or else the largest difference between both ways.
    """
    if plan.difference is not None and not plan.whole:
        session.ledger.say(first_batch=plan.difference)
    if not plan.whole:
        return
    session.ledger.say(not_split=plan.whole)
    if session.world.rank == 0:
        print(
            f"syrtos: {what} is not split over the workers: {plan.whole}. Each worker computes the whole batch, so the results are those of one process, "
            f"and {session.world.size} workers are no faster than one.",
            file=sys.stderr,
        )
