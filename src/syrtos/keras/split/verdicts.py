"""Tells users which steps are split: terminal lines, run records, `syrtos verify`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos.comm.world import Session
from syrtos.keras.split.comparison import Row
from syrtos.run_dir import RunDir

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model


def is_split(session: Session) -> bool:
    """Returns whether each worker gets a part of each batch.

    With `--batch per-worker` it has batches of its own, whose losses are averaged.
    """
    return session.world.size > 1 and session.options.batch != "per-worker"


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
        self._is_asked = session.options.verifies

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
        rows: Sequence[Row],
        session: Session,
        model: str,
        step: str,
        bound: float,
        whole: str = "",
        gathered: str = "",
        operations: int = 0,
    ) -> None:
        """Adds a line about a step to a file of the run directory, on rank 0.

        Args:
            rows: what was compared.
            session: the workers.
            model: the name of the model.
            step: the name of the step.
            bound: the largest relative difference that counts as none.
            whole: why the step is not split; empty if it is.
            gathered: operations that each worker computes whole, on gathered rows.
            operations: how many operations were compared by themselves.
        """
        if session.world.rank == 0 and session.options.run_dir:
            found = {
                "model": model,
                "step": step,
                "whole": whole,
                "computes": "Each worker computes",
                "bound": bound,
                "gathered": gathered,
                "operations": operations,
                "rows": [dataclasses.asdict(row) for row in rows],
            }
            with RunDir(Path(session.options.run_dir)).comparisons.open("a") as file:
                file.write(json.dumps(found) + "\n")


_NAMED = 3  # so many functions that are not split are named in the record of a run


def tell(why: str, session: Session, what: str) -> None:
    """Says once that a step is not split, and why: every worker computes the whole batch.

    The record of the run has that too.
    """
    before, found = str(session.ledger.told.get("not_split", "")), f"{what}: {why}"
    if before.count("; `") < _NAMED - 1:  # more are on the terminal
        session.ledger.say(not_split=f"{before}; {found}" if before else found)
    if session.world.rank == 0:
        print(
            f"syrtos: {what} is not split over the workers: {why}. Each worker computes the whole batch, so"
            f" the results are those of one process, and {session.world.size} workers are no faster"
            " than one.",
            file=sys.stderr,
        )
