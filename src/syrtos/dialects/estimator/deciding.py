"""Decides how a step is split over workers, by computing some rows of its first batch both ways.

What Keras itself computes is known to be right on a share of the rows: losses and metrics row by
row, gradients as means. Of anything else (a `train_step`, a layer or an optimizer of the script's
own) nothing is assumed: before the first batch counts, each worker computes some rows of all
workers whole, as one process does, then they compute them split, and everything is put back. Where
both agree, the step is split. Where a sum, a maximum or the like makes them agree, that becomes the
rule. Where nothing does, the step is not split: each worker computes the whole batch, which is
right, and no faster than one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from syrtos.comm.communicator import Array, Communicator
from syrtos.comm.world import Session
from syrtos.dialects.estimator.outcomes import (
    Assigned,
    StepOutcome,
    StepTrial,
    compare_outcomes,
    describe_difference,
    norm_of,
    rows_of,
)
from syrtos.dialects.estimator.plan import Rule, SplitPlan
from syrtos.errors import OutOfStepError
from syrtos.keras.split.comparison import bound_of, distance, distance_of_changes, size_of


def decide(plan: SplitPlan, trial: StepTrial, session: Session) -> None:
    """Fills in the plan; all workers call this together and end with the same plan.

    Args:
        plan: that of the function whose first batch this is.
        trial: runs the step.
        session: the workers.
    """
    _decide(plan, trial, session)
    _look_at_more_rows(plan, trial, session, _decide)
    if plan.was_compared and not plan.reason_not_split:
        _look_behind_zeros(plan, trial, session)


def _look_behind_zeros(plan: SplitPlan, trial: StepTrial, session: Session) -> None:
    """Compares once more with small variables that are 0 set to 1.

    A term that they weigh may count later.
    """
    with trial.zeros_raised() as names:
        of_all = session.comm.allgather_object(names)
        # Of workers that hold different ones, some would compute another step than others.
        if (
            of_all[0]
            and all(other == of_all[0] for other in of_all)
            and not confirm(plan, trial, session)
        ):
            plan.reason_not_split = (
                f"`{names[0]}` is 0 now, and once it is not, parts of the rows give something else"
                " than the batch"
            )


def _look_at_more_rows(
    plan: SplitPlan,
    trial: StepTrial,
    session: Session,
    decide_by: Callable[[SplitPlan, StepTrial, Session], None],
) -> None:
    """Compares ever more rows, as long as nothing has shown that the step can't be split."""
    # Few rows show best what means over parts have not in common with a mean, and many what takes
    # the largest of a number. All of them show what a step does by how many there are.
    while plan.was_compared and not plan.reason_not_split:
        more = trial.with_more_rows()
        if more is None:
            plan.left_out = trial.left_out
            return
        if not confirm(plan, more, session):
            other = plan.for_next_comparison()
            decide_by(other, more, session)
            plan.adopt(other)
        plan.compared_all_rows |= more.has_all_rows()
        trial = more


def _decide(plan: SplitPlan, trial: StepTrial, session: Session) -> None:
    comm = session.comm
    whole = _compute_as_one_process(plan, trial, comm)
    if whole is None:
        return
    bound = bound_of(trial.precision())
    differs: list[tuple[str, int]] = []
    split = StepOutcome()
    for gradients in ("mean", "sum", "late"):
        plan.gradients = gradients
        split = trial.compute_split(plan)
        if failed := _any_failed(comm, split):
            plan.reason_not_split = _describe_failure(failed)
            return
        differs, plan.difference = compare_outcomes(comm, whole, split, bound, plan)
        plan.rows = rows_of(whole, split)
        if gradients == "sum":
            for row in plan.rows:
                row.rule = "sum" if row.kind == "gradient" else row.rule
        if not any(what == "gradient" for what, _ in differs):
            break
    else:
        plan.reason_not_split = describe_difference(comm, whole, split, differs)
        return
    rest = [place for place in differs if not _find_rule(plan, comm, whole, split, place, bound)]
    plan.reason_not_split = (
        describe_difference(comm, whole, split, rest)
        if rest
        else _describe_unchanged(plan, comm, whole, split)
    )
    if not plan.reason_not_split and {"max", "min"} & {
        *plan.variables.values(),
        *plan.logs.values(),
    }:
        _check_backwards(plan, trial, comm, bound)
    if not plan.reason_not_split:
        _note_shown(plan, comm, whole, split)


def confirm(plan: SplitPlan, trial: StepTrial, session: Session) -> bool:
    """Returns whether a later batch agrees with the plan; if it does not, a new plan is to be made.

    All workers call this together.

    Args:
        plan: of the function.
        trial: runs its step on rows of the batch.
        session: the workers.
    """
    comm = session.comm
    whole = trial.compute_as_one_process(False)
    if _any_failed(comm, whole):
        whole = trial.compute_as_one_process(True)
        if _any_failed(comm, whole):
            return True  # an error of the script, which the step itself will raise
    split = trial.compute_split(plan)
    if _any_failed(comm, split):
        return False
    differs, far = compare_outcomes(comm, whole, split, bound_of(trial.precision()), plan)
    if not differs and not _describe_unchanged(plan, comm, whole, split):
        plan.difference = max(plan.difference or 0.0, far)
        plan.compared_variables |= {key for key, one in split.assigned.items() if not _is_same(one)}
        return True
    return False


def _compute_as_one_process(
    plan: SplitPlan, trial: StepTrial, comm: Communicator
) -> StepOutcome | None:
    """Returns what one process computes; None where it fails, which the plan says then."""
    whole = trial.compute_as_one_process(False)
    if _any_failed(comm, whole):  # a function may need as many rows as the script gives it
        whole = trial.compute_as_one_process(True)
        if failed := _any_failed(comm, whole):  # an error of the script its first step will raise
            plan.reason_not_split = f"it could not be tried: {failed}"
            return None
    return whole


def _note_shown(
    plan: SplitPlan, comm: Communicator, whole: StepOutcome, split: StepOutcome
) -> None:
    """Notes what the comparison has shown, for later ones. All workers call this together."""
    plan.was_compared = True
    plan.compared_variables |= {key for key, one in split.assigned.items() if not _is_same(one)}
    if not plan.scale:
        plan.scale = norm_of(whole.gradients)
        plan.log_scales = [size_of(log) for log in whole.logs]
    for index, (log, own) in enumerate(zip(whole.logs, split.own_logs, strict=False)):
        # A count of rare rows that were not among these is a sum, and `any` of them a maximum.
        kind = np.asarray(log).dtype.kind
        if kind in "iub" and index not in plan.logs and not np.any(log) and not np.any(own):
            plan.logs[index] = "max" if kind == "b" else "sum"


def _describe_unchanged(
    plan: SplitPlan, comm: Communicator, whole: StepOutcome, split: StepOutcome
) -> str:
    """Says which assigned variable has not changed on any worker; empty where there is none."""
    # Any rule fits such a variable, so nothing is shown of it.
    names = [
        one.name
        for key, one in split.assigned.items()
        if key in split.own
        and not plan.has_shown(key)
        and _is_same(one)
        and _is_same(whole.assigned.get(key, one))
    ]
    of_all = comm.allgather_object(names)
    found = [name for name in of_all[0] if all(name in other for other in of_all)]
    return (
        f"`{found[0]}`, which it assigns, does not change on the rows of the first batch, so they"
        " do not show what it becomes"
        if found
        else ""
    )


def _is_same(one: Assigned) -> bool:
    return bool(np.array_equal(one.before, one.after, equal_nan=one.before.dtype.kind == "f"))


def _check_backwards(plan: SplitPlan, trial: StepTrial, comm: Communicator, bound: float) -> None:
    """Tries the plan once more with the rows in another order.

    The split is given up if both ways differ then.
    """
    # A maximum or minimum may fit by chance: of two workers a value of the first row is always the
    # largest or the least.
    other = trial.backwards()
    whole, split = other.compute_as_one_process(False), other.compute_split(plan)
    failed = _any_failed(comm, whole) or _any_failed(comm, split)
    differs = [] if failed else compare_outcomes(comm, whole, split, bound, plan)[0]
    if failed or differs:
        plan.reason_not_split = failed or describe_difference(comm, whole, split, differs)


def _any_failed(comm: Communicator, outcome: StepOutcome) -> str:
    """Returns the error of the first worker whose step did not come to its end; empty if all did.

    All workers call it together.
    """
    # Workers that failed alone have left the others in an exchange, which fails then, and with it
    # the first call here.
    for _ in range(3):
        try:
            comm.agree("the first batch was computed")
            break
        except OutOfStepError as error:
            outcome.error = outcome.error or str(error)
    errors = comm.allgather_object(outcome.error)
    # The cause, and not what has followed from it on the other workers.
    own = [error for error in errors if error and "OutOfStepError" not in error]
    return next(iter(own or filter(None, errors)), "")


def _describe_failure(error: str) -> str:
    if "OutOfStepError" in error:
        return (
            "the workers come to different exchanges: a branch or a length depends on the rows of a"
            " part"
        )
    return f"it fails on a part of the batch: {error}"


def _find_rule(
    plan: SplitPlan,
    comm: Communicator,
    whole: StepOutcome,
    split: StepOutcome,
    place: tuple[str, int],
    bound: float,
) -> bool:
    """Finds a rule that makes the workers' values those of one process, and adds it to the plan.

    Args:
        plan: gets the rule, and shows it in its rows.
        comm: the workers, which all call this together.
        whole: what each worker has computed as one process.
        split: what they have computed together.
        place: the kind and index of what differs, as `compare_outcomes` gives it.
        bound: the largest relative difference that counts as none.

    Returns:
        Whether there is one.
    """
    what, index = place
    if what == "log":
        before, own, wanted = np.zeros(()), split.own_logs[index], whole.logs[index]
        rules: dict[int, Rule] = plan.logs
        key = index
    else:
        key = next(
            (k for i, k in enumerate({**whole.assigned, **split.assigned}) if i == index), -1
        )
        one, other = whole.assigned.get(key), split.assigned.get(key)
        if one is None or other is None or key not in split.own:
            return False
        before, own, wanted = other.before, split.own[key], one.after
        rules = plan.variables
    shapes = comm.allgather_object([*np.shape(own)])
    if any(shape != [*np.shape(wanted)] for shape in shapes):  # rows, or a list that a step fills
        return False
    rows = comm.allgather(np.asarray(own, np.float64)[np.newaxis])
    made = {rule: combine(rows, np.asarray(before, np.float64)) for rule, combine in _RULES.items()}

    def far(value: Array) -> float:
        return (
            distance(wanted, value) if what == "log" else distance_of_changes(before, wanted, value)
        )

    # Each worker by its own rounding; the first rule, in the order of `_RULES`, that fits on all of
    # them.
    fits = comm.allgather_object([rule for rule, value in made.items() if far(value) <= bound])
    chosen: Rule | None = next(
        (rule for rule in fits[0] if all(rule in of_each for of_each in fits)), None
    )
    if chosen is None:
        return False
    rules[key] = chosen
    name = whole.log_names[index] if what == "log" else whole.assigned[key].name
    for row in plan.rows:
        if (row.kind, row.name) == (what, name):
            made_of = made[chosen]
            row.rule, row.split, row.difference = chosen, size_of(made_of), far(made_of)
    return True


_RULES: Mapping[Rule, Callable[[Array, Array], Array]] = {
    "equal": lambda rows, before: (
        rows[0] if (rows == rows[0]).all() else np.full_like(rows[0], np.nan)
    ),
    "sum": lambda rows, before: before + (rows - before).sum(axis=0),
    "max": lambda rows, before: rows.max(axis=0),
    "min": lambda rows, before: rows.min(axis=0),
}
