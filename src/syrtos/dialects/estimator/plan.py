"""The way in which the steps of a `model_fn` are split."""

from __future__ import annotations

import dataclasses
from typing import Literal

from syrtos.keras.split.comparison import Row

Rule = Literal["equal", "sum", "mean", "max", "min"]


@dataclasses.dataclass
class SplitPlan:
    """The way in which the steps of one function of a model are split.

    Attributes:
        is_decided: whether the first batch has been looked at.
        reason_not_split: why every worker computes the whole batch; empty where the step is split.
        gradients: what the workers' gradients become: their mean by samples, or their sum, where
            they are made; ``late``: their mean where an optimizer gets them.
        variables: how the workers' values of an assigned variable become one, by the variable's id;
            others have the rule of their kind.
        logs: how the workers' numbers that a step returns become one, by their place among them.
        difference: the largest relative difference between both ways; None where all parts are
            Keras's own.
        rows: everything that was compared.
        was_compared: whether a comparison has made the plan, which then knows what becomes of every
            variable that the step assigns.
        compared_all_rows: whether whole batches are small enough to be compared, and the first one
            was.
        left_out: the rows of the first batch that were compared, such as ``64 of its 512 rows``,
            where all of them would have cost too much; empty elsewhere.
        compared_variables: ids of variables whose change was compared.
        scale: the norm of all gradients in the first comparison, and the size of each log: later
            ones may be near zero, where rounding is all that differs.
    """

    is_decided: bool = False
    reason_not_split: str = ""
    gradients: Literal["mean", "sum", "late"] = "mean"
    variables: dict[int, Rule] = dataclasses.field(default_factory=dict)
    logs: dict[int, Rule] = dataclasses.field(default_factory=dict)
    difference: float | None = None
    rows: list[Row] = dataclasses.field(default_factory=list)
    was_compared: bool = False
    compared_all_rows: bool = False
    left_out: str = ""
    compared_variables: set[int] = dataclasses.field(default_factory=set)
    scale: float = 0.0
    log_scales: list[float] = dataclasses.field(default_factory=list)

    def knows_rule(self, key: int) -> bool:
        """Returns whether it is known what the workers' values of a variable become.

        ``key``: the variable's id, as in `variables`. Where no comparison was made, all is Keras's
            own, and known.
        """
        return not self.was_compared or self.has_shown(key)

    def has_shown(self, key: int) -> bool:
        """Returns what `knows_rule` does; right also during the comparison that makes the plan."""
        return key in self.compared_variables or key in self.variables

    def for_next_comparison(self) -> SplitPlan:
        """Returns an empty plan for a later comparison.

        It has this plan's known variables and scales.
        """
        return SplitPlan(
            is_decided=True,
            scale=self.scale,
            log_scales=self.log_scales,
            compared_all_rows=self.compared_all_rows,
        )

    def adopt(self, other: SplitPlan) -> None:
        """Takes over what a later comparison has shown.

        The functions that use this plan must be made anew.
        """
        # What was shown before stays shown: a variable may be assigned in some steps alone.
        self.reason_not_split, self.gradients = other.reason_not_split, other.gradients
        self.variables, self.logs, self.rows = other.variables, other.logs, other.rows
        self.compared_variables |= other.compared_variables
        self.compared_all_rows |= other.compared_all_rows

    def is_like(self, other: SplitPlan) -> bool:
        """Returns whether both split steps alike."""
        same = self.reason_not_split == other.reason_not_split and self.gradients == other.gradients
        return same and self.variables == other.variables and self.logs == other.logs
