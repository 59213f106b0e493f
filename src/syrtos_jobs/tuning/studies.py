"""Trials in Optuna's form.

A study lives in memory for one question, and is built anew from the trials that there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.space import Parameter, Space, text
from syrtos_jobs.tuning.trials import SearchTrial

_Value = str | float | int


def study(
    search: Search, sampler: BaseSampler | None = None, pruner: BasePruner | None = None
) -> optuna.Study:
    """Makes a study without trials."""
    # Optuna would report each study that is made
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction = "maximize" if search.maximize else "minimize"
    return optuna.create_study(
        study_name=search.name, direction=direction, sampler=sampler, pruner=pruner
    )


def add(found: optuna.Study, search: Search, trials: Sequence[SearchTrial]) -> None:
    """Adds trials to a study by their numbers."""
    # Optuna numbers them in the order in which they are added: a gap becomes a trial that failed
    known = {trial.number: trial for trial in trials}
    for number in range(1, max(known, default=0) + 1):
        found.add_trial(
            _frozen_trial(search, known[number])
            if number in known
            else optuna.create_trial(state=TrialState.FAIL)
        )


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Returns the space in Optuna's form."""
    return {parameter.name: _distribution(parameter) for parameter in space}


def texts(space: Space, params: Mapping[str, _Value]) -> dict[str, str]:
    """Returns Optuna's suggestions as the texts that a training job gets."""
    return {p.name: _text(p, params[p.name]) for p in space}


def _text(parameter: Parameter, value: _Value) -> str:
    if isinstance(value, str):
        return value
    return text(parameter, 1 - value if parameter.scale == "reverse" else value)


def _params(space: Space, tuned: Mapping[str, str]) -> dict[str, _Value]:
    return {parameter.name: _param(parameter, tuned[parameter.name]) for parameter in space}


def _param(parameter: Parameter, given: str) -> _Value:
    if parameter.kind == "Categorical":
        return given
    if parameter.kind == "Integer":
        return int(given)
    if parameter.scale == "reverse":
        # 1 - x of a text may lie a rounding error outside of the range
        return min(max(1 - float(given), 1 - parameter.high), 1 - parameter.low)
    return float(given)


def _distribution(parameter: Parameter) -> BaseDistribution:
    low, high, log = parameter.low, parameter.high, parameter.scale != "linear"
    if parameter.kind == "Categorical":
        return CategoricalDistribution(parameter.values)
    if parameter.kind == "Integer":
        return IntDistribution(int(low), int(high), log=log)
    return (
        FloatDistribution(1 - high, 1 - low, log=True)
        if parameter.scale == "reverse"
        else FloatDistribution(low, high, log=log)
    )


def _frozen_trial(search: Search, trial: SearchTrial) -> FrozenTrial:
    state = _state(trial)
    pruned = state is TrialState.PRUNED and trial.objective is not None
    return optuna.create_trial(
        state=state,
        value=trial.objective if state is TrialState.COMPLETE else None,
        params=_params(search.space, trial.tuned),
        distributions=distributions(search.space),
        # a sampler ranks a trial that was ended early by the last of these
        intermediate_values={max(1, len(trial.values)): trial.objective or 0.0} if pruned else {},
    )


def _state(trial: SearchTrial) -> TrialState:
    if trial.active:
        return TrialState.RUNNING
    if not trial.has_succeeded:
        return TrialState.FAIL
    return TrialState.COMPLETE if trial.status == "Completed" else TrialState.PRUNED
