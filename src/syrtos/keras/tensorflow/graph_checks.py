"""Checks of a split step's graph, for what no comparison of rows shows.

A check refuses the trace by an error, and the step is then not split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import tensorflow as tf

from syrtos.keras.split import verdicts
from syrtos.keras.split.plan import SplitPlan, UnprovenStepError
from syrtos.keras.tensorflow import decisions, seeded_draws
from syrtos.keras.tensorflow.assignments import is_sum


class GraphChecks:
    """The checks of one trace of a step.

    Each of them raises `UnprovenStepError`, whose text the plan keeps.
    """

    def __init__(self, graph: tf.Graph, plan: SplitPlan, rows: Sequence[object]) -> None:
        """
        Args:
            graph: in which the step is traced.
            plan: the way the step is split.
            rows: the tensors of this worker's share.
        """
        self._graph, self._plan, self._rows = graph, plan, rows

    def check_computation(self) -> None:
        """Looks for draws by a constant seed, and for decisions by a number of this worker's rows.

        A step that no comparison was needed for has neither.
        """
        if not self._plan.was_compared:
            return
        if found := seeded_draws.first_seeded_draw(self._graph, self._rows):
            self._refuse(verdicts.describe_seeded_draw(found))
        # Where all rows of a batch were compared, it was shown what becomes of their number; later
        # batches may show what the compared ones have not.
        by_count = not self._plan.compared_all_rows
        if found := decisions.first_decision(self._graph, self._rows, by_count):
            self._refuse(verdicts.describe_decision(found))

    def check_draws_of_prediction(self) -> None:
        """Looks for random draws for this worker's rows: one process draws other numbers for them."""
        if found := seeded_draws.first_seeded_draw(self._graph, self._rows, by_any_seed=True):
            self._refuse(verdicts.describe_draw_of_prediction(found))

    def check_assigned(self, variables: Iterable[tuple[int, tf.Variable]]) -> None:
        """Looks for a variable that is assigned, for example in a branch, and not shown how.

        ``variables``: what the step assigns, with their keys in the plan.
        """
        for key, variable in variables:
            if not is_sum(variable) and not self._plan.knows_rule(key):
                self._refuse(
                    f"no comparison of rows has shown what becomes of `{variable.name}`, which it"
                    " assigns in some steps"
                )

    def _refuse(self, reason: str) -> NoReturn:
        self._plan.unproven = reason
        raise UnprovenStepError(reason)
