"""Checks for gradients and losses that are NaN or infinite.

What becomes of gradients that are not finite is decided before they are applied; a loss that is not
finite is reported once. An update that is left out leaves no trace, as a `LossScaleOptimizer`
leaves out its own: weights, the optimizer's state and its number of updates stay as they were, and
in `fit` so do metrics and moving statistics, into which the same batch has gone.
"""

from __future__ import annotations

import json
import math
import numbers
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from syrtos.comm import compression, world
from syrtos.comm.communicator import Array, Communicator
from syrtos.comm.world import Session
from syrtos.errors import NonFiniteError
from syrtos.keras import backend
from syrtos.keras.features.feature import Feature, Fit, Record
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.keras.protocols import Logs, Model, Variable
    from syrtos.keras.updates import Update

# So many updates may be left out one after the other: more show that it is not one batch that is
# wrong.
_MOST_IN_A_ROW = 10
# So many are told, each in a line.
_TOLD = 10
# So many records of a batch are named in it; all of them are in a file.
_NAMED = 3


class _LeftOut:
    """The updates that this process has left out."""

    def __init__(self, session: Session) -> None:
        self.session, self.number = session, 0
        self.begin()

    def begin(self) -> None:
        """Forgets what was noted in an earlier `fit`, except the number of all left-out updates."""
        self.in_a_row: dict[int, int] = {}
        self.in_step = False  # an update of the step that runs was left out
        self.is_in_step = False  # a step is traced, or runs, that is undone where this is so
        # whether this worker's terms of gradients that are sums were finite; None: there were none
        self.terms_are_finite: bool | None = None
        self.batch = ""  # of `fit`, in words
        self.records: Callable[[], Sequence[Record]] = list  # of this worker's share of it


def _left_out() -> _LeftOut:
    return world.part(_LeftOut)


def is_asked() -> bool:
    """Returns whether gradients are looked at before each update."""
    return world.current().options.on_nan != "warn"


def leaves_out() -> bool:
    """Returns whether training goes on without an update whose gradients are not finite."""
    return world.current().options.on_nan == "skip"


class NonFinite(Feature):
    """`--on-nan`, and the report of a loss that is not finite, which every run has."""

    name = "finite"

    def training_begins(self, fit: Fit) -> None:
        fit.keep(NonFiniteLossReport(self.session))
        if fit.is_outermost:
            _left_out().begin()

    def training_ends(self, fit: Fit) -> None:
        if fit.is_outermost:
            _left_out().begin()

    def batch_begins(self, fit: Fit) -> None:
        """Notes the batches that the call of the training function begins to train on."""
        first, left_out = fit.batch + 1, _left_out()
        left_out.terms_are_finite = None  # noted of an update that its optimizer has left out
        several = f"batches {first} to {fit.batch + fit.call_steps}"
        batches = f"batch {first}" if fit.call_steps == 1 else several
        left_out.batch, left_out.records = f" ({batches} of epoch {fit.epoch + 1})", fit.records

    def batch_ends(self, fit: Fit, logs: Logs) -> None:
        if report := fit.find(NonFiniteLossReport):
            report.look(fit.epoch, fit.batch, logs)

    def epoch_computed(self, fit: Fit, logs: dict[str, object] | None) -> None:
        if report := fit.find(NonFiniteLossReport):
            report.read()

    def around_step(
        self, model: Model, session: Session, step: Callable[[], object]
    ) -> Callable[[], object]:
        if not leaves_out():
            return step

        def compute() -> object:
            left_out = _left_out()
            before, left_out.is_in_step = left_out.is_in_step, True
            try:
                return step()
            finally:
                left_out.is_in_step = before

        return backend.active().undo_if_left_out(model, session, compute)

    def around_update(
        self, update: Update, apply: Callable[[Sequence[Any]], None]
    ) -> Callable[[Sequence[Any]], None]:
        if not leaves_out():
            return apply
        return lambda grads: backend.active().apply_if_finite(update, grads, apply)

    def check_gradients(
        self, update: Update, grads: Sequence[Any], own: Sequence[Any]
    ) -> Sequence[Any]:
        return backend.active().check_finite(update, grads, own) if is_asked() else grads


FEATURE = NonFinite


def is_in_step() -> bool:
    """Returns whether the update that is traced, or made, undoes a step if it is left out.

    An update that the script makes elsewhere, as in a callback, undoes nothing but itself.
    """
    return _left_out().is_in_step


def note_terms(terms: Sequence[Array], sums: Sequence[Array]) -> None:
    """Notes whether this worker's terms of gradients are finite, where their sums are not.

    Args:
        terms: this worker's terms.
        sums: the gradients, of the same shapes.
    """
    if is_asked() and not all(map(_is_finite, sums)):
        left_out = _left_out()
        before = left_out.terms_are_finite in (None, True)
        left_out.terms_are_finite = before and all(map(_is_finite, terms))


def take_terms() -> bool | None:
    """Returns what `note_terms` has noted since the last update; None: nothing."""
    left_out = _left_out()
    found, left_out.terms_are_finite = left_out.terms_are_finite, None
    return found


def _is_finite(array: Array) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array).all())


def step_is_left_out(comm: Communicator) -> bool:
    """Returns whether a worker has left out an update in the step that ends.

    All workers call it together.
    """
    left_out = _left_out()
    mine, left_out.in_step = left_out.in_step, False
    return any(comm.agree("an update was left out?", float(mine)))


def changed_by_batch(model: Model) -> list[Variable]:
    """Returns the variables that a batch changes by passing through a model.

    They are moving statistics, seeds and metrics. The weights, which an update changes, are not
    among them.
    """
    return [*model.non_trainable_variables, *state.of_metrics(model)]


def results_of_left_out_step(model: Model, logs: object) -> object:
    """Returns the logs of a step that was left out.

    Where ``logs`` are the results of the model's metrics, they are read anew.
    """
    results = model.get_metrics_result()
    return results if isinstance(logs, dict) and logs.keys() == results.keys() else logs


def look(
    comm: Communicator | None,
    variables: Sequence[Variable],
    finite: Sequence[bool],
    own: Sequence[bool],
    update: int,
    in_step: bool = False,
) -> bool:
    """Decides whether an update is made; called before each.

    Args:
        comm: the workers, which then all call it together; None where this worker's gradients are
            not reduced.
        variables: those of the gradients.
        finite: for each gradient of the global batch whether all its numbers are finite; equal on
            all workers of ``comm``.
        own: the same for this worker's share.
        update: number of the update, from 1.
        in_step: what `is_in_step` was when the update was traced, or made.

    Returns:
        Whether the update is to be made.

    Raises:
        NonFiniteError: it is not, and training must not go on; names the first gradient, and the
            workers whose share made it so.
    """
    which, left_out = id(variables[0]) if variables else 0, _left_out()
    compression.update_is_decided(state.held_objects(variables), is_made=all(finite))
    if all(finite):
        left_out.in_a_row[which] = 0
        return True
    gradient = _describe_gradients(comm, variables, finite, all(own))
    if not leaves_out():
        raise NonFiniteError(
            f"Update {update}{left_out.batch} was stopped: {gradient}, and was not applied."
            f" {_ADVICE} Without `--on-nan stop` training goes on, as in plain Keras; with"
            " `--on-nan skip` it goes on without this batch."
        )
    left_out.in_step |= in_step
    _leave_out(which, f"update {update}{left_out.batch} was left out: {gradient}")
    return False


def stop(
    comm: Communicator | None,
    variables: Sequence[Variable],
    finite: Sequence[bool],
    own: Sequence[bool],
) -> None:
    """Stops training where an update of accumulated gradients is not finite.

    Raises:
        NonFiniteError: the sum of the gradients is not finite.
    """
    # It can't be left out any more: its batches have been accumulated, each of finite gradients.
    if not all(finite):
        gradient = _describe_gradients(comm, variables, finite, all(own))
        raise NonFiniteError(
            f"An update of accumulated gradients{_left_out().batch} was stopped: {gradient}, and was"
            f" not applied. {_ADVICE}"
        )


_ADVICE = (
    "Look at the batch, lower the learning rate, or keep what the loss divides by, or takes a"
    " logarithm of, away from 0."
)


def _leave_out(which: int, what: str) -> None:
    left_out = _left_out()
    in_a_row = left_out.in_a_row[which] = left_out.in_a_row.get(which, 0) + 1
    left_out.number += 1
    session = left_out.session
    session.ledger.say(left_out=left_out.number)
    if session.world.rank == 0 and left_out.number <= _TOLD:
        more = " Further ones are counted, and have no line." if left_out.number == _TOLD else ""
        print(f"syrtos: {what}.{more}", file=sys.stderr)
    if in_a_row > _MOST_IN_A_ROW:
        raise NonFiniteError(
            f"{in_a_row} updates in a row were left out, so it is not one batch that is wrong:"
            f" {what}. {_ADVICE}"
        )


def _describe_gradients(
    comm: Communicator | None, variables: Sequence[Variable], finite: Sequence[bool], own: bool
) -> str:
    wrong = [index for index, flag in enumerate(finite) if not flag]
    name = _name(variables[wrong[0]]) if len(variables) == len(finite) else f"number {wrong[0]}"
    others = f", and of {len(wrong) - 1} more," * (len(wrong) > 1)
    return f"the gradient of {name}{others} is NaN or infinite{_cause(comm, own)}"


def _name(variable: Variable) -> str:
    return f"`{getattr(variable, 'path', variable.name)}`"


def _cause(comm: Communicator | None, is_finite: bool) -> str:
    """Describes which workers' shares are not finite, with their records where these are known."""
    left_out = _left_out()
    rank = left_out.session.world.rank
    records = [] if is_finite else list(left_out.records())
    if records:
        _write(left_out, records)
    if comm is None or comm.size == 1:
        return _from(records, rank)
    everyone = comm.allgather_object((rank, is_finite, len(records), records[:_NAMED]))
    wrong = [each for each in everyone if not each[1]]
    if not wrong:
        return ", in the sum over the workers, whose shares are finite"
    ranks = ", ".join(str(each[0]) for each in wrong)
    which = f"share of rank {ranks}" if len(wrong) == 1 else f"shares of ranks {ranks}"
    first = next((each for each in wrong if each[2]), None)
    return f", in the {which}" + (_from(first[3], first[0], first[2]) if first else "")


def _from(records: Sequence[Record], rank: int, count: int | None = None) -> str:
    """Describes ``count`` records that a share of this rank was made of, and names some of them.

    The result is empty without any record.
    """
    if not records:
        return ""
    named = ", ".join(f"{index} ({file}, at {place})" for index, file, place in records[:_NAMED])
    count = len(records) if count is None else count
    if count == 1:
        return f" (made of record {named})"
    path = _list_of(world.current().options.run_dir, rank)
    listed = f"; all are listed in {path}" if count > _NAMED and path else ""
    return (
        f" (made of {count} records, in one or more of which the cause may be:"
        f" {named}{', ...' * (count > _NAMED)}{listed})"
    )


def _write(left_out: _LeftOut, records: Sequence[Record]) -> None:
    """Appends the records of this worker's share of the batch to a file, in a line of JSON."""
    path = _list_of(left_out.session.options.run_dir, left_out.session.world.rank)
    if path is None:
        return
    found = [{"index": index, "file": file, "offset": place} for index, file, place in records]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"batch": left_out.batch.strip(" ()"), "records": found}) + "\n")
    except OSError as error:
        # a full disk, for example, is no reason to end the training
        print(f"syrtos: {path} can't be written: {error.strerror}", file=sys.stderr)


def _list_of(folder: str, rank: int) -> Path | None:
    return Path(folder) / "data" / f"not-finite-rank-{rank}.jsonl" if folder else None


# Seconds between two looks at losses that a device computes.
_SECONDS_UNREAD = 1.0


class NonFiniteLossReport:
    """Says once in a `fit` that its loss is not finite any more."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_over = session.world.rank > 0
        # Losses that a device computes, with their epoch and batch: to read each would hold up the
        # steps after it.
        self._unread: list[tuple[int, int, Any]] = []
        self._read_at = time.monotonic()

    def look(self, epoch: int, batch: int, logs: Logs) -> None:
        """Looks at the loss of a batch, at once or after a second, and reports a non-finite one."""
        loss: Any = (logs or {}).get("loss")
        if self._is_over or loss is None or len(getattr(loss, "shape", ())):
            return
        # A tensor of torch holds the graph that has made it.
        self._unread.append((epoch, batch, loss.detach() if hasattr(loss, "detach") else loss))
        if isinstance(loss, numbers.Real) or time.monotonic() - self._read_at > _SECONDS_UNREAD:
            self.read()

    def read(self) -> None:
        """Looks at the losses that were not looked at; called at the end of an epoch too."""
        unread, self._unread, self._read_at = self._unread, [], time.monotonic()
        computed = [loss for _, _, loss in unread if not isinstance(loss, numbers.Real)]
        read = iter(backend.active().numbers(computed)) if computed else iter(())
        losses = (
            (epoch, batch, float(loss) if isinstance(loss, numbers.Real) else next(read))
            for epoch, batch, loss in unread
        )
        epoch, batch, loss = next(
            (each for each in losses if not math.isfinite(each[2])), (0, 0, 0.0)
        )
        if math.isfinite(loss):
            return
        self._is_over, advice = True, ""
        if not self._session.options.servers and not is_asked():
            advice = (
                " `--on-nan stop` ends a run before it applies such gradients, and names the"
                " variable and the rank; `--on-nan skip` leaves them out."
            )
        print(
            f"syrtos: the loss is {loss} since batch {batch + 1} of epoch {epoch + 1}.{advice}",
            file=sys.stderr,
        )
