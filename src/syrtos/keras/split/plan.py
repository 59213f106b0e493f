"""The way in which the steps of one function of a model are split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

# A number, or a tensor of numbers, of a backend.
NumberT = TypeVar("NumberT")
Rule = Literal["equal", "sum", "mean", "max", "min"]


@dataclasses.dataclass
class Row:
    """A number, gradient or variable of the first batch, computed both ways.

    `syrtos verify` shows it as a row of its table.

    Attributes:
        kind: ``gradient``, ``log``, ``output`` or ``variable``.
        name: a name for a person.
        whole, split: its value, or its norm, computed from some rows together and from parts of
            them.
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
        known_variables: ids of variables of which no comparison is needed: of metrics, and of
            Keras's own layers.
        compared_variables: ids of variables whose change was compared.
        batch_draws: the shapes of random draws that one process makes once for a batch, and not for
            its rows, such as noise for gradients: they have the same shape for all rows and for a
            part of them.
        row_draws: the shapes of random draws for rows, without the number of rows.
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
    known_variables: set[int] = dataclasses.field(default_factory=set)
    compared_variables: set[int] = dataclasses.field(default_factory=set)
    batch_draws: frozenset[tuple[int, ...]] = frozenset()
    row_draws: frozenset[tuple[int, ...]] = frozenset()
    scale: float = 0.0
    log_scales: list[float] = dataclasses.field(default_factory=list)

    def reduces_where_made(self, script_sees_them: bool) -> bool:
        """Returns whether gradients are reduced where they are made.

        Else they are reduced where an optimizer of Keras's own takes them.
        """
        # A sum over rows is added up where it is made: an optimizer of Keras's own would take the
        # mean.
        return self.gradients == "sum" or (script_sees_them and self.gradients != "late")

    def accumulates_whole_batches(self, script_sees_them: bool) -> bool:
        """Returns whether optimizers are given gradients of whole batches.

        Else they are given each worker's own gradients, which they reduce.
        """
        return bool(self.reason_not_split) or self.reduces_where_made(script_sees_them)

    def knows_rule(self, key: int) -> bool:
        """Returns whether it is known what the workers' values of a variable become.

        ``key``: the variable's id, as in `variables`. Where no comparison was made, all is Keras's
            own, and known.
        """
        return not self.was_compared or self.has_shown(key)

    def has_shown(self, key: int) -> bool:
        """Returns what `knows_rule` does; right also during the comparison that makes the plan."""
        return (
            key in self.known_variables or key in self.compared_variables or key in self.variables
        )

    def draws_once(self, shape: Sequence[int] | None) -> bool:
        """Returns whether a random draw is made for a batch: then it is the same on all workers.

        ``shape``: of the draw; None where it is not known yet, as only a number of rows may be.
        """
        # A draw whose shape may be either is made for rows. All workers decide alike: the numbers of
        # their rows have no part in it.
        is_for_batch = shape is not None and tuple(shape) in self.batch_draws
        return is_for_batch and not (shape and tuple(shape[1:]) in self.row_draws)

    def combine_logs(
        self,
        numbers: Sequence[NumberT],
        is_mean: Callable[[NumberT], bool],
        means_of: Callable[[list[NumberT]], Sequence[NumberT]],
        combine: Callable[[NumberT, Rule], NumberT],
    ) -> dict[int, NumberT]:
        """Returns what the numbers that a step returns become, by the `id`s of those that change.

        Args:
            numbers: this worker's, in order.
            is_mean: says whether a number without a rule becomes its mean by samples.
            means_of: exchanges numbers, and returns their means by samples. It is called once.
            combine: exchanges a number, and returns what its rule makes of it.
        """
        rules: list[Rule] = [
            self.logs.get(i, "mean" if is_mean(number) else "equal")
            for i, number in enumerate(numbers)
        ]
        pairs: list[tuple[NumberT, Rule]] = list(zip(numbers, rules, strict=True))
        averaged = [number for number, rule in pairs if rule == "mean"]
        changed = {
            id(number): mean for number, mean in zip(averaged, means_of(averaged), strict=True)
        }
        others: list[tuple[NumberT, Rule]] = [
            (number, rule) for number, rule in pairs if rule not in ("mean", "equal")
        ]
        return changed | {id(number): combine(number, rule) for number, rule in others}

    def for_next_comparison(self) -> SplitPlan:
        """Returns an empty plan for a later comparison.

        It has this plan's known variables and scales.
        """
        return SplitPlan(
            is_decided=True,
            known_variables=self.known_variables,
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
        self.batch_draws, self.row_draws = other.batch_draws, other.row_draws
        self.compared_variables |= other.compared_variables
        self.compared_all_rows |= other.compared_all_rows

    def is_like(self, other: SplitPlan) -> bool:
        """Returns whether both split steps alike."""
        same = self.reason_not_split == other.reason_not_split and self.gradients == other.gradients
        return same and self.variables == other.variables and self.logs == other.logs
