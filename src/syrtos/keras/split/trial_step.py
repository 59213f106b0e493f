"""A step on some rows of a batch, which leaves no trace, and the values that it computes."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import re
import resource
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, Self, SupportsFloat, SupportsInt, TypeVar

import numpy as np

from syrtos.comm.communicator import Array, Communicator
from syrtos.comm.world import Session
from syrtos.keras import backend, keras_internals
from syrtos.keras.patching import Method
from syrtos.keras.replica import state
from syrtos.keras.split import between_steps
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.python_state import Change
from syrtos.keras.split.tensors import bytes_of, has_dtype
from syrtos.observe import memory
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, NamedVariable

# Takes an optimizer, the gradients that it is given, and their variables, of the classes of the
# backend.
Note = Callable[..., None]
# Rows of all workers that are computed both ways, and at least so many of each worker.
ROWS, ROWS_OF_EACH = 8, 2
# As many as have so many bytes are taken, but no more than these.
_BYTES, _MOST_ROWS = 1 << 16, 64
# All rows are taken where there are at most so many, of so many bytes, and where a worker that
# computes them all takes such a part of the memory that is free, or so many bytes of an
# accelerator, and not too many seconds.
_ROWS_OF_ALL, _BYTES_OF_ALL = 1024, 1 << 24
_PART_OF_MEMORY, _BYTES_OF_DEVICE, _SECONDS_OF_ALL = 0.25, 1 << 30, 10.0


class Batch(Protocol):
    """The part of a batch that a worker has, in the form that its backend gives it."""

    @property
    def samples(self) -> SamplesCount:
        """The number of its rows, a scalar."""
        ...


class SamplesCount(SupportsInt, SupportsFloat, Protocol):
    """A whole number of Python, or a scalar tensor of one."""


# The models and batches of a backend.
ModelT = TypeVar("ModelT", bound="Model")
BatchT = TypeVar("BatchT", bound=Batch)


class Amount(enum.IntEnum):
    """The number of rows of a batch that are computed both ways."""

    FEW = 0
    MORE = 1
    ALL = 2


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
        draws: the shapes of the random draws, in order; None in the place of one that is not known,
            as it is made in a graph.
        error: why the step did not come to its end; empty if it did.
    """

    gradients: list[Array] = dataclasses.field(default_factory=list)
    gradient_names: list[str] = dataclasses.field(default_factory=list)
    logs: list[Array] = dataclasses.field(default_factory=list)
    log_names: list[str] = dataclasses.field(default_factory=list)
    own_logs: list[Array] = dataclasses.field(default_factory=list)
    assigned: dict[int, Assigned] = dataclasses.field(default_factory=dict)
    own: dict[int, Array] = dataclasses.field(default_factory=dict)
    draws: list[tuple[int, ...] | None] = dataclasses.field(default_factory=list)
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

    def zeros_raised(self) -> AbstractContextManager[list[str]]:
        """Returns a context in which small variables that are 0 are 1.

        It is made by `between_steps.zeros_raised`.
        """
        ...


def add_python_changes(outcome: StepOutcome, changes: Sequence[Change]) -> None:
    """Counts numbers that Python code has changed as variables that were assigned."""
    # Since the outcome has no `own` values of them, no rule is found for them: they must be equal.
    for index, change in enumerate(changes):
        # Negative, as no identity of an object is, and the same on all workers.
        key = -1 - zlib.crc32(change.name.encode()) - (index << 32)
        outcome.assigned[key] = Assigned(change.name, change.before, change.after)


# Marks of TensorFlow for its own tools, and colors, in messages of errors.
_NODE = re.compile(r"\{\{[^{}]*\}\} ?|\x1b\[[0-9;]*m")


def describe_error(error: Exception) -> str:
    """Returns the class of an error and the line of its message that names the cause."""
    lines = [line.strip() for line in _NODE.sub("", str(error)).splitlines() if line.strip()] or [
        ""
    ]
    if lines[0].startswith("in user code"):  # autograph: what follows is a traceback
        return lines[-1][:300].rstrip(".")
    called = (
        lines[0].startswith("Exception encountered when calling") and len(lines) > 1
    )  # Keras, of a layer
    return f"{type(error).__name__}: {lines[1 if called else 0]}"[:300].rstrip(".")


def bytes_of_batch(leaves: Sequence[object]) -> int:
    """Returns the bytes of the arrays and tensors among a batch's leaves whose shape is known."""
    # Ragged tensors have None among their sizes.
    return sum(
        bytes_of(leaf) for leaf in leaves if has_dtype(leaf) and None not in tuple(leaf.shape)
    )


def rows_to_take(comm: Communicator, count: int, size: int, amount: Amount) -> int:
    """Returns how many rows of this worker are computed both ways. All workers call it together.

    Args:
        comm: the workers.
        count: rows that this worker has.
        size: bytes of all of them.
        amount: how many are wanted; fewer are taken where rows are large.
    """
    rows = ROWS
    if amount != Amount.FEW:
        # A worker may have no rows, or smaller ones, and all must take the same number.
        row = max(comm.agree("bytes of a row", size / max(count, 1)))
        rows = min(max(ROWS, int(_BYTES // max(row, 1.0))), _MOST_ROWS)
    if amount == Amount.ALL:
        small = sum(comm.agree("bytes of a batch", float(size))) <= _BYTES_OF_ALL
        if small and sum(comm.agree("rows of a batch", float(count))) <= _ROWS_OF_ALL:
            return count
    each = max(rows // comm.size, ROWS_OF_EACH)
    counts = comm.agree("rows of each worker", float(count))
    taken = [int(min(have, each + (rank == 0))) for rank, have in enumerate(counts)]
    # Of equally many rows on all workers a mean of the workers' means looks like the mean of all
    # rows.
    if len(set(taken)) == 1 and taken[0] > 1:
        taken[-1] -= 1
    return taken[comm.rank]


class TrialOfRows(Generic[ModelT, BatchT]):
    """The part of a `StepTrial` that takes ever more rows of a batch.

    It is generic in the backend's models, and in what a worker has of a batch.
    """

    def __init__(
        self,
        model: ModelT,
        session: Session,
        step: Method,
        batch: BatchT,
        some: BatchT,
        amount: Amount,
    ) -> None:
        """
        Args:
            model: whose step it is.
            session: the workers.
            step: computes the values.
            batch: what this worker has of the batch.
            some: the rows of it that are computed, likewise.
            amount: how many rows were wanted.
        """
        self._model, self._session, self._step = model, session, step
        self._all, self._some, self._amount = batch, some, amount
        # Subclasses compute between now and `with_more_rows`, which asks what that has cost.
        self._began, self._used = time.monotonic(), _memory()
        self.left_out = ""

    def _with_amount(self, amount: Amount) -> Self:
        """Returns a trial of the same step with another amount of rows."""
        raise NotImplementedError

    def zeros_raised(self) -> AbstractContextManager[list[str]]:
        """Returns a context in which small variables of the model that are 0 are 1."""
        return between_steps.zeros_raised(self._model, self._reads_attributes())

    def _reads_attributes(self) -> bool:
        """Returns whether the step reads objects' attributes at each run, not only when traced."""
        return bool(getattr(self._model, "run_eagerly", False))

    def with_more_rows(self) -> Self | None:
        """Returns the same step on more rows, if there are more and they do not cost too much.

        All workers call it together.
        """
        seconds, own = time.monotonic() - self._began, self._rows()
        for amount in range(self._amount + 1, Amount.ALL + 1):
            more = self._with_amount(Amount(amount))
            rows = more._rows()
            # The batch, or the bytes of its rows, may allow no more than this trial has.
            if rows > own:
                return more if amount != Amount.ALL or self._allows(own, rows, seconds) else None
        return None

    def has_all_rows(self) -> bool:
        """Returns whether it computes all rows of the batch, on all workers."""
        lacks = int(self._some.samples) < int(self._all.samples)
        return not any(self._session.comm.agree("are there other rows?", float(lacks)))

    def _note_logs(self, outcome: StepOutcome, run: Callable[[StepOutcome], object]) -> None:
        """Runs the step, and notes the numbers that it returns, or the error in which it ends."""
        try:
            logs = run(outcome)
            found = self._compared_leaves(logs)
            outcome.logs = [self._as_array(leaf) for leaf in found]
            outcome.log_names = names_of(logs, found)
        # Any error of the script's step: that it can't be computed in one of the ways is what a
        # trial is to show.
        except Exception as error:
            outcome.error = describe_error(error)

    def _compared_leaves(self, logs: object) -> Sequence[object]:
        """Returns what is compared of the step's outputs, in order."""
        raise NotImplementedError

    def _as_array(self, leaf: object) -> Array:
        """Returns a compared leaf as an array."""
        return np.asarray(leaf)

    def build(self) -> None:
        """Runs the step once, for what a model's first call makes, on backends where it matters."""

    def has_few_rows(self) -> bool:
        """Returns whether fewer than two workers have rows, which shows nothing."""
        return sum(count > 0 for count in self._rows_of_each()) < 2

    def _rows_of_each(self) -> Sequence[float]:
        return self._session.comm.agree("rows of each worker", float(self._some.samples))

    def _rows(self) -> int:
        return int(sum(self._rows_of_each()))

    def _allows(self, own: int, rows: int, seconds: float) -> bool:
        """Returns whether a trial of ``rows`` rows is cheap enough.

        Its cost is estimated from what this trial of ``own`` rows has taken. Where it is not cheap
        enough, `left_out` says so from now on. All workers call it together.
        """
        # All workers of a host compute at the same time.
        workers = self._session.world.local_size
        device, host = (
            peak - before for peak, before in zip(_peak_memory(), self._used, strict=True)
        )
        is_too_much = (
            host * workers * rows / own > _PART_OF_MEMORY * memory.now().available
            or device * rows / own > _BYTES_OF_DEVICE
            or seconds * rows / own > _SECONDS_OF_ALL
        )
        allowed = not any(
            self._session.comm.agree("do all rows cost too much?", float(is_too_much))
        )
        if not allowed:
            self.left_out = f"{own} of its {rows} rows"
        return allowed


def _memory() -> tuple[int, int]:
    """Returns this process's peak bytes on its accelerator, and its bytes on the host now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return backend.active().device_memory(), pages * os.sysconf("SC_PAGE_SIZE")


def _peak_memory() -> tuple[int, int]:
    """Returns the most bytes that this process has had on its accelerator, and on the host."""
    return (
        backend.active().device_memory(),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def add_gradients(
    outcome: StepOutcome, gradients: Iterable[Array | None], variables: Sequence[NamedVariable]
) -> None:
    """Adds the gradients that there are, by the names of their variables or, without these, numbered."""
    names = [state.name_of(variable) for variable in variables]
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            outcome.gradients.append(gradient)
            outcome.gradient_names.append(
                names[index] if index < len(names) else f"gradient {index + 1}"
            )


def precision_of(model: Model) -> int:
    """Returns the bytes of the model's least precise layer dtype; 4 where none is floating."""
    names = [
        str(getattr(layer, "compute_dtype", None) or "float32")
        for layer in keras_internals.layers_of(model)
    ]
    found = [re.search(r"float(\d+)", name) for name in names]
    return min((int(match[1]) // 8 for match in found if match), default=4)


def in_own_row(value: Array, rank: int, size: int) -> Array:
    """Returns a row for each worker, with zeros in all but this worker's.

    The result has the shape ``(size, *value.shape)``; its sum over the workers has the values of
    all.
    """
    rows = np.zeros((size, *np.shape(value)), np.asarray(value).dtype)
    rows[rank] = value
    return rows


@dataclasses.dataclass(frozen=True)
class GradientNotes:
    """A function that is given the gradients of optimizers.

    Attributes:
        note: takes the optimizer, its gradients (None for a variable without one), and the
            variables.
        updates: whether the optimizers make their updates too.
    """

    note: Note
    updates: bool


_notes: ContextVar[GradientNotes | None] = ContextVar("notes", default=None)


@contextlib.contextmanager
def noting_gradients(note: Note, updates: bool = False) -> Iterator[None]:
    """Context manager: ``note`` is given the gradients of optimizers, in the place of updates.

    With ``updates`` it is called before each of them; see `GradientNotes`.
    """
    with set_within(_notes, GradientNotes(note, updates)):
        yield


def noting() -> GradientNotes | None:
    """Returns what notes the gradients of optimizers; None: nothing does."""
    return _notes.get()


@contextlib.contextmanager
def noting_nothing() -> Iterator[None]:
    """Context manager: gradients that an optimizer passes to another one are not noted again."""
    with set_within(_notes, None):
        yield


def names_of(logs: object, numbers: Sequence[object]) -> list[str]:
    """Returns the keys under which a step returns its numbers; others are numbered from 1."""
    # By identity: tensors can't be compared by `==`, and equal numbers have names of their own.
    keys = {id(value): str(name) for name, value in logs.items()} if isinstance(logs, dict) else {}
    return [keys.get(id(number), str(index + 1)) for index, number in enumerate(numbers)]
