"""The choice of trials to end early: Hyperband's successive halving, or the median rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import optuna
from optuna.pruners import HyperbandPruner, MedianPruner

from syrtos_jobs.tuning import studies
from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.trials import SearchTrial

_FACTOR = 3  # of trials, one goes on
_BEFORE = 4  # trials that must have finished for a median


def hopeless(search: Search, trials: Sequence[SearchTrial]) -> list[SearchTrial]:
    """Returns the running trials that are to end now.

    Args:
        trials: all trials, with the values of the metric that each has reported.
    """
    running = [trial for trial in trials if trial.active and trial.values]
    if not running:
        return []
    if search.strategy == "Hyperband":
        ended = _numbers_to_prune(search, trials)
        return [trial for trial in running if trial.number in ended or _is_beyond(search, trial)]
    return _below_median(search, trials, running) if search.early_stopping else []


def _is_beyond(search: Search, trial: SearchTrial) -> bool:
    """Returns whether a trial has used more than the largest resource."""
    # not just as much: a trial that ends by itself with that has saved its model
    most = search.resource[1]
    return most is not None and len(trial.values) > most


def _numbers_to_prune(search: Search, trials: Sequence[SearchTrial]) -> set[int]:
    """Returns the numbers of the trials that Optuna's pruner has ended at some rung."""
    most = search.resource[1] or max(
        (len(t.values) for t in trials if t.status == "Completed"), default=0
    )
    least = search.resource[0]
    if most <= least:
        # until a trial has finished, nobody knows how long one is
        return set()
    study = studies.study(
        search,
        pruner=HyperbandPruner(min_resource=least, max_resource=most, reduction_factor=_FACTOR),
    )
    asked = {number: study.ask() for number in range(1, max(trial.number for trial in trials) + 1)}
    ended = set[int]()
    # the pruner has no state of its own: it is told all reports once more, in the order in which
    # they came
    for _, number, step, value in sorted(_reports(trials, least, most)):
        asked[number].report(value, step)
        if asked[number].should_prune():
            ended.add(number)
    return ended


def _reports(
    trials: Sequence[SearchTrial], least: int, most: int
) -> Iterator[tuple[float, int, int, float]]:
    """Yields time, trial, step and value of the reports at the steps of rungs."""
    for trial in trials:
        # trials are judged at the rungs alone: least, 3 times least, 9 times ...
        step = least
        while step < most and step <= len(trial.values):
            when, value = trial.values[step - 1]
            yield when, trial.number, step, value
            step *= _FACTOR


def _below_median(
    search: Search, trials: Sequence[SearchTrial], running: Sequence[SearchTrial]
) -> list[SearchTrial]:
    """Returns the trials whose best value so far is worse than the median.

    The median is that of finished trials at the same step.
    """
    study = studies.study(search, pruner=MedianPruner(n_startup_trials=_BEFORE, n_warmup_steps=1))
    for trial in trials:
        if trial.status == "Completed" and trial.has_succeeded:
            study.add_trial(
                optuna.create_trial(value=trial.objective, intermediate_values=_by_step(trial))
            )
    return [trial for trial in running if _is_below(study, trial)]


def _is_below(study: optuna.Study, trial: SearchTrial) -> bool:
    asked = study.ask()
    for step, value in _by_step(trial).items():
        asked.report(value, step)
    return asked.should_prune()


def _by_step(trial: SearchTrial) -> dict[int, float]:
    return {step: value for step, (_, value) in enumerate(trial.values, 1)}
