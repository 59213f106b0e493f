"""Tells users how a step is split: terminal lines, error notes, run records, `syrtos verify`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos.comm.world import Session
from syrtos.errors import SyrtosError
from syrtos.keras import backend, keras_internals
from syrtos.keras.split.plan import SplitPlan
from syrtos.observe.ledger import verified_path

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, P, R


def is_split(session: Session) -> bool:
    """Returns whether each worker gets a part of each batch.

    With `--batch per-worker` it has batches of its own, whose losses are averaged.
    """
    return session.world.size > 1 and session.options.batch != "per-worker"


def naming_split(plan: SplitPlan, session: Session, function: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function of steps: where batches are split, its errors say so.

    A later batch than the first may have a form that the step refuses.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (StopIteration, SyrtosError):
            raise
        except Exception as error:
            notes = getattr(error, "__notes__", [])
            if (
                is_split(session)
                and not plan.reason_not_split
                # TensorFlow's word for the end of the data, by name: this room knows no framework.
                and type(error).__name__ != "OutOfRangeError"
                and not any(map(_names_split, notes))
            ):
                error.add_note(_SPLIT.format(workers=session.world.size))
            raise

    return call


_SPLIT = (
    "syrtos: batches are split over {workers} workers here, and this step had one worker's share of"
    " the rows. If it needs all rows of a batch, or one number of them, make that so from the first"
    " batch on (`drop_remainder=True`), on which it is tried; `syrtos verify` shows what was found"
    " out."
)


def describe_decision(where: str) -> str:
    """Says why a step that decides by a number of its rows is not split.

    ``where``: the operation and its place, such as ``Greater in train.py, line 7``.
    """
    return f"it decides by a number of its rows ({where}), and parts of them have others"


def describe_seeded_draw(operation: str) -> str:
    """Says why a step is not split whose draws have a constant seed; ``operation``: their type."""
    return (
        f"it draws random numbers by a seed that all workers share ({operation}): they would draw"
        " the same for other rows"
    )


def describe_draw_of_prediction(operation: str) -> str:
    """Says why predictions with random draws are not split; ``operation``: the type of the draw."""
    return (
        f"it draws random numbers for its rows ({operation}), and parts of the batch would get"
        " others"
    )


def _names_split(note: str) -> bool:
    return note.startswith(_SPLIT[:30])


class Verifying:
    """Ends what `syrtos verify` runs after some batches, and writes down what was compared."""

    CALLS = 2  # of each function; then its data counts as at its end

    def __init__(self, model: Model, session: Session) -> None:
        """
        Args:
            model: whose function's calls are counted.
            session: the workers; in runs that are not of `syrtos verify` nothing is ended.
        """
        self._model, self._calls = model, 0
        self._is_asked = session.options.verify == "only"

    def count_call(self) -> None:
        """Counts a call with a batch of a data set.

        After `CALLS` calls a loop that trains or evaluates ends as after its last batch, by the
        flags that callbacks can set.
        """
        self._calls += 1
        if self._is_asked and self._calls >= self.CALLS:
            # Not `stop_predicting`: a script goes on with what `predict` returns, which must have a
            # row for each sample.
            self._model.stop_training = self._model.stop_evaluating = True

    @staticmethod
    def note(
        plan: SplitPlan,
        session: Session,
        model: str,
        step: str,
        bound: float,
        computes: str = "Each worker computes",
        gathered: str = "",
    ) -> None:
        """Adds a line about the plan to a file of the run directory, on rank 0.

        ``gathered``: operations that each worker computes whole, on gathered rows.
        """
        if session.world.rank == 0 and session.options.run_dir:
            found = {
                "model": model,
                "step": step,
                "whole": plan.reason_not_split,
                "bound": bound,
                "computes": computes,
                "gathered": gathered,
                "rows": [dataclasses.asdict(row) for row in plan.rows],
            }
            with verified_path(Path(session.options.run_dir)).open("a") as file:
                file.write(json.dumps(found) + "\n")


_NAMED = 3  # so many functions that are not split are named in the record of a run


def tell_change(
    plan: SplitPlan, session: Session, what: str, step: int, computes: str = "Each worker computes"
) -> None:
    """Says that a later batch has changed how a step is split; the record of the run has it too."""
    session.ledger.say(changed_at=step)
    if not (plan.reason_not_split or plan.variables or plan.gradients != "mean"):
        return  # a number that it returns becomes a sum, or no sum any more
    if session.world.rank == 0:
        how = (
            f"is not split any more: {plan.reason_not_split}. {computes} the whole batch"
            if plan.reason_not_split
            else "is split in another way"
        )
        print(
            f"syrtos: from step {step:,} on {what} {how}: in this batch the workers would compute"
            " something else than one process. Earlier steps that did, between two comparisons,"
            " may differ from those of one process.",
            file=sys.stderr,
        )


def tell_own_statistics(plan: SplitPlan, model: Model, session: Session) -> None:
    """Says once that BatchNormalization normalizes by workers' shares in a split training step."""
    if (
        plan.reason_not_split
        or session.options.sync_batchnorm
        or not is_split(session)
        or session.ledger.told.get("own_statistics")
    ):
        return
    found = [layer for layer in keras_internals.layers_of(model) if _normalizes_by_share(layer)]
    if not found:
        return
    session.ledger.say(own_statistics=found[0].name)
    if session.world.rank == 0:
        layers, normalize, they = (
            (f"{len(found)} BatchNormalization layers", "normalize", "them")
            if len(found) > 1
            else (f"the BatchNormalization layer `{found[0].name}`", "normalizes", "it")
        )
        print(
            f"syrtos: {layers} {normalize} over each worker's share of a batch, so results differ"
            f" from those of one process. `--sync-batchnorm` lets {they} normalize over the whole"
            " batch.",
            file=sys.stderr,
        )


def _normalizes_by_share(layer: object) -> bool:
    # By name, since it may be Keras 3's or Keras 2's. A layer that is not trained uses its moving
    # statistics.
    is_trained = type(layer).__name__ == "BatchNormalization" and getattr(layer, "trainable", True)
    return is_trained and not getattr(layer, "synchronized", False)


def tell(
    plan: SplitPlan, session: Session, what: str, computes: str = "Each worker computes"
) -> None:
    """Says once that a step is not split, why, and which workers compute the whole batch.

    The record of the run has that too, or else the largest difference between both ways.
    """
    if plan.difference is not None and not plan.reason_not_split:
        session.ledger.say(first_batch=plan.difference)
    if not plan.reason_not_split:
        _tell_left_out(plan, session, what)
        return
    before, found = (
        str(session.ledger.told.get("not_split", "")),
        f"{what}: {plan.reason_not_split}",
    )
    if before.count("; `") < _NAMED - 1:  # more are on the terminal
        session.ledger.say(not_split=f"{before}; {found}" if before else found)
    if session.world.rank == 0:
        draws_otherwise = backend.is_chosen() and not backend.active().draws_as_plain
        but = ", but for random numbers drawn in steps" if draws_otherwise else ""
        print(
            f"syrtos: {what} is not split over the workers: {plan.reason_not_split}. {computes} the"
            f" whole batch, so the results are those of one process{but}, and {session.world.size}"
            " workers are no faster than one.",
            file=sys.stderr,
        )


def _tell_left_out(plan: SplitPlan, session: Session, what: str) -> None:
    """Says once that not all rows of the first batch were compared, as that would cost too much."""
    rows, plan.left_out = plan.left_out, ""
    if rows and session.world.rank == 0:
        print(
            f"syrtos: {what} was compared with one process on {rows}: all of them need more memory"
            " or time than a comparison may take. What depends on how many rows there are (the"
            " worst 64 of a batch, a smaller last batch that does not count) was not shown to be"
            " that of one process.",
            file=sys.stderr,
        )
