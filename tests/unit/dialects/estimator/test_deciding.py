"""How a step is split is decided by what its first batch gives whole and in parts; all workers come to the same decision."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from syrtos.comm.communicator import ReduceOp
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.dialects.estimator import deciding
from syrtos.dialects.estimator.outcomes import Assigned, StepOutcome
from syrtos.dialects.estimator.plan import SplitPlan
from syrtos.errors import OutOfStepError

ROWS = np.asarray([[1.0, 2.0], [3.0, 5.0], [4.0, 0.5]])
KEY = 7

Compute = Callable[[np.ndarray[Any, Any]], Any]


@dataclasses.dataclass
class Trial:
    """A step that assigns, returns or gives an optimizer what a function computes of rows, on one of two workers."""

    comm: InProcessCommunicator
    assigns: Compute = lambda rows: 1.0
    returns: Compute = lambda rows: 0.0
    gradient: Compute = lambda rows: 0.0
    rows: np.ndarray[Any, Any] = dataclasses.field(default_factory=lambda: ROWS)
    left_out: str = ""

    def compute_as_one_process(self, all_rows: bool) -> StepOutcome:
        return self._outcome(self.rows)

    def with_more_rows(self) -> Trial | None:
        return None

    def has_all_rows(self) -> bool:
        return True

    def backwards(self) -> Trial:
        return dataclasses.replace(self, rows=self.rows[::-1])

    def precision(self) -> int:
        return 4

    def zeros_raised(self) -> contextlib.AbstractContextManager[list[str]]:
        return contextlib.nullcontext([])

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        try:
            return self._together(plan, (self.rows[:2], self.rows[2:])[self.comm.rank])
        except (ValueError, OutOfStepError) as error:
            return StepOutcome(error=f"{type(error).__name__}: {error}")

    def _together(self, plan: SplitPlan, own: np.ndarray[Any, Any]) -> StepOutcome:
        found = self._outcome(own)
        parts = np.asarray(self.comm.agree("rows", float(len(own))))
        weight = len(own) / parts.sum() if plan.gradients == "mean" else 1.0
        found.gradients = [self.comm.allreduce(np.asarray(g) * weight) for g in found.gradients]
        found.own_logs, found.own = list(found.logs), {KEY: found.assigned[KEY].after}
        share = len(own) / parts.sum()
        found.logs = [self._combined(log, share, plan.logs.get(0)) for log in found.logs]
        found.assigned[KEY].after = self._combined(found.own[KEY], share, plan.variables.get(KEY))
        return found

    def _combined(self, own: Any, share: float, rule: str | None) -> np.ndarray[Any, Any]:
        known = {"max": ReduceOp.MAX, "min": ReduceOp.MIN, "sum": ReduceOp.SUM}
        if rule in known:
            return self.comm.allreduce(np.asarray(own), known[rule])
        return self.comm.allreduce(np.asarray(own) * share)

    def _outcome(self, rows: np.ndarray[Any, Any]) -> StepOutcome:
        computed = (
            np.asarray(part(rows), np.float64)
            for part in (self.gradient, self.returns, self.assigns)
        )
        gradient, log, value = computed
        assigned = {KEY: Assigned("state", np.zeros(()), value)}
        return StepOutcome([gradient], ["kernel"], [log], ["loss"], [], assigned)


def decided(together: Callable[..., list[Any]], **parts: Compute) -> SplitPlan:
    """The plan of two workers, which must be the same."""

    def decide(comm: InProcessCommunicator) -> SplitPlan:
        plan, session = SplitPlan(), SimpleNamespace(comm=comm)
        deciding.decide(plan, Trial(comm, **parts), session)  # type: ignore[arg-type]
        return plan

    one, other = together(2, decide)
    assert (one.reason_not_split, one.gradients, one.variables, one.logs) == (
        other.reason_not_split,
        other.gradients,
        other.variables,
        other.logs,
    )
    return one


def test_means_are_split_as_they_are(together: Callable[..., list[Any]]) -> None:
    plan = decided(together, gradient=lambda r: r.mean(axis=0), returns=np.mean, assigns=np.mean)
    assert (plan.reason_not_split, plan.gradients, plan.variables, plan.logs) == (
        "",
        "mean",
        {},
        {},
    )
    assert plan.difference == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("rule", "of_rows"),
    [("sum", np.sum), ("sum", len), ("max", np.max), ("min", np.min), ("equal", lambda r: 3.0)],
)
def test_what_makes_a_variable_that_of_one_process_is_its_rule(
    together: Callable[..., list[Any]], rule: str, of_rows: Compute
) -> None:
    plan = decided(together, assigns=of_rows)
    assert plan.reason_not_split == ""
    assert plan.variables == (
        {} if rule == "equal" else {KEY: rule}
    )  # a mean of equal values is the value


def test_the_same_of_numbers_that_a_step_returns(together: Callable[..., list[Any]]) -> None:
    plan = decided(together, returns=np.max)
    assert (plan.reason_not_split, plan.logs) == ("", {0: "max"})
    assert [(row.name, row.rule, row.difference) for row in plan.rows if row.kind == "log"] == [
        ("loss", "max", 0.0)
    ]


def test_a_value_of_one_row_is_no_maximum(together: Callable[..., list[Any]]) -> None:
    """Of two workers one has the larger value in any case."""
    assert (
        "the `loss` that it returns"
        in decided(together, returns=lambda r: r[0, 0]).reason_not_split
    )


def test_a_small_change_is_compared_too(together: Callable[..., list[Any]]) -> None:
    assert decided(together, assigns=lambda r: 1e-3 * np.square(r).mean() ** 0.5).reason_not_split


def test_gradients_of_a_sum_are_added(together: Callable[..., list[Any]]) -> None:
    plan = decided(together, gradient=lambda r: r.sum(axis=0))
    assert (plan.reason_not_split, plan.gradients) == ("", "sum")


def test_what_no_rule_makes_equal_is_not_split_and_named(
    together: Callable[..., list[Any]],
) -> None:
    assert (
        "`state` becomes 2.1"
        in decided(together, assigns=lambda r: np.sqrt(np.square(r).mean()) * 0.7).reason_not_split
    )
    assert "the `loss` that it returns is" in decided(together, returns=np.std).reason_not_split
    assert (
        "gradients of a part of the rows"
        in decided(together, gradient=lambda r: np.square(r.mean(axis=0))).reason_not_split
    )


def test_a_step_that_fails_on_a_part_is_not_split(together: Callable[..., list[Any]]) -> None:
    def needs_three(rows: np.ndarray[Any, Any]) -> float:
        if len(rows) != 3:
            raise ValueError(f"3 rows, not {len(rows)}")
        return 0.0

    assert (
        decided(together, gradient=needs_three).reason_not_split
        == "it fails on a part of the batch: ValueError: 3 rows, not 2"
    )


def test_a_step_that_fails_on_one_worker_alone_leaves_nobody_waiting(
    together: Callable[..., list[Any]],
) -> None:
    def dislikes_one(rows: np.ndarray[Any, Any]) -> float:
        if len(rows) == 1:
            raise ValueError("one row")
        return 0.0

    assert (
        decided(together, gradient=dislikes_one).reason_not_split
        == "it fails on a part of the batch: ValueError: one row"
    )


def test_a_variable_that_stays_as_it_was_shows_no_rule(together: Callable[..., list[Any]]) -> None:
    assert (
        "`state`, which it assigns, does not change"
        in decided(together, assigns=lambda r: 0.0).reason_not_split
    )


def test_a_count_of_rare_rows_is_a_sum(together: Callable[..., list[Any]]) -> None:
    """None of the rows is one of them: a number that is counted, and was 0 on all workers, is added up."""

    def decide(comm: InProcessCommunicator) -> SplitPlan:
        plan, session = SplitPlan(), SimpleNamespace(comm=comm)
        trial = Trial(comm, returns=lambda r: np.sum(r > 1e6))
        outcome = trial._outcome
        trial._outcome = lambda rows: dataclasses.replace(  # type: ignore[method-assign]
            found := outcome(rows), logs=[np.asarray(log, np.int64) for log in found.logs]
        )
        deciding.decide(plan, trial, session)  # type: ignore[arg-type]
        return plan

    assert [plan.logs for plan in together(2, decide)] == [{0: "sum"}, {0: "sum"}]


def test_a_later_batch_that_disagrees_is_seen(together: Callable[..., list[Any]]) -> None:
    def later(comm: InProcessCommunicator) -> tuple[bool, bool]:
        plan, session = SplitPlan(), SimpleNamespace(comm=comm)
        deciding.decide(plan, Trial(comm, gradient=lambda r: r.mean(axis=0)), session)  # type: ignore[arg-type]
        same = Trial(comm, gradient=lambda r: r.mean(axis=0), rows=ROWS * 2)
        other = Trial(comm, gradient=lambda r: r.mean(axis=0) ** 2)
        return tuple(deciding.confirm(plan, trial, session) for trial in (same, other))  # type: ignore

    assert together(2, later) == [(True, False)] * 2


def test_rounding_of_gradients_near_zero_is_no_difference(
    together: Callable[..., list[Any]],
) -> None:
    def later(comm: InProcessCommunicator) -> bool:
        plan, session = SplitPlan(), SimpleNamespace(comm=comm)
        deciding.decide(plan, Trial(comm, gradient=lambda r: r.mean(axis=0)), session)  # type: ignore[arg-type]
        noise = Trial(comm, gradient=lambda r: 1e-8 * np.sin(1e9 * r).mean(axis=0) ** 2)
        return deciding.confirm(plan, noise, session)  # type: ignore[arg-type]

    assert together(2, later) == [True, True]


def test_what_few_rows_do_not_show_more_rows_may(together: Callable[..., list[Any]]) -> None:
    """A gradient of the two largest of all rows is a mean as long as a worker has no more than these."""

    class OfMany(Trial):
        def with_more_rows(self) -> Trial | None:
            return Trial(self.comm, gradient=lambda r: r.mean(axis=0) ** 2, rows=ROWS * 2)

    def decide(comm: InProcessCommunicator) -> SplitPlan:
        plan, session = SplitPlan(), SimpleNamespace(comm=comm)
        deciding.decide(plan, OfMany(comm, gradient=lambda r: r.mean(axis=0)), session)  # type: ignore[arg-type]
        return plan

    assert all("do not add up" in plan.reason_not_split for plan in together(2, decide))
