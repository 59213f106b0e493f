"""The parts of a CreateHyperParameterTuningJob request in syrtos's own terms.

The parts are a pure function of the request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from syrtos.errors import ConfigurationError
from syrtos_jobs.tuning import space as spaces
from syrtos_jobs.tuning.space import Space

Strategy = Literal["Random", "Grid", "Bayesian", "Hyperband"]
_MOST_TRIALS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The search of a tuning job: its goal, and the conditions of its end.

    Attributes:
        metric: a metric of the training jobs, whose last value is minimized or maximized.
        trials: the most training jobs.
        parallel: the most training jobs at a time.
        seconds: the time that the tuning job may take; None: no limit.
        target: the value of the metric at which the search ends.
        patience: the search ends after this many trials that were not better than the best before
            them.
        early_stopping: whether a trial ends that is worse than the median of those before it.
        resource: the least and the largest number of values of the metric that a Hyperband trial
            reports: it is not ended before the least.
        seed: the seed of all suggestions.
        parents: earlier tuning jobs from which it learns.
        transfer: whether these had other data or another algorithm, so that only their points are
            useful, not their objectives.
    """

    name: str
    strategy: Strategy
    space: Space
    metric: str
    maximize: bool
    trials: int
    parallel: int
    seconds: float | None = None
    target: float | None = None
    patience: int | None = None
    early_stopping: bool = False
    resource: tuple[int, int | None] = (1, None)
    seed: int = 0
    parents: tuple[str, ...] = ()
    transfer: bool = False

    def better(self, value: float, other: float) -> bool:
        """Returns whether one value of the metric is better than another."""
        return value > other if self.maximize else value < other


def read(request: Mapping[str, Any], seed: int) -> Search:
    """Reads a request that is valid by SageMaker's service model.

    Args:
        seed: used if the request has none.

    Raises:
        ConfigurationError: it asks for something that can't be done here.
    """
    _check_supported(request)
    config = request["HyperParameterTuningJobConfig"]
    limits, criteria = config["ResourceLimits"], config.get("TuningJobCompletionCriteria") or {}
    definition = request["TrainingJobDefinition"]
    objective = config.get("HyperParameterTuningJobObjective") or definition.get("TuningObjective")
    if not objective:
        raise ConfigurationError(
            "A tuning job needs a HyperParameterTuningJobObjective: the metric, and whether to"
            " minimize or to maximize it."
        )
    space = spaces.read(
        config.get("ParameterRanges") or definition.get("HyperParameterRanges") or {}
    )
    both = {*spaces.names(space)} & {*(definition.get("StaticHyperParameters") or {})}
    if both:
        raise ConfigurationError(
            f"A hyperparameter is either tuned or static. Both: {', '.join(sorted(both))}."
        )
    early = config.get("TrainingJobEarlyStoppingType") == "Auto"
    if early and config["Strategy"] == "Hyperband":
        raise ConfigurationError(
            "Hyperband ends trials itself: leave TrainingJobEarlyStoppingType Off."
        )
    return Search(
        name=request["HyperParameterTuningJobName"],
        strategy=config["Strategy"],
        space=space,
        metric=objective["MetricName"],
        maximize=objective["Type"] == "Maximize",
        trials=_trials(config, space, criteria),
        parallel=limits["MaxParallelTrainingJobs"],
        seconds=limits.get("MaxRuntimeInSeconds"),
        target=criteria.get("TargetObjectiveMetricValue"),
        patience=(criteria.get("BestObjectiveNotImproving") or {}).get(
            "MaxNumberOfTrainingJobsNotImproving"
        ),
        early_stopping=early,
        resource=_resource(config),
        seed=config.get("RandomSeed", seed),
        parents=_parents(request),
        transfer=(request.get("WarmStartConfig") or {}).get("WarmStartType") == "TransferLearning",
    )


def _check_supported(request: Mapping[str, Any]) -> None:
    config = request["HyperParameterTuningJobConfig"]
    criteria = config.get("TuningJobCompletionCriteria") or {}
    refused = {
        "TrainingJobDefinitions": request.get("TrainingJobDefinitions"),
        "Autotune": request.get("Autotune"),
        "AutoParameters": (config.get("ParameterRanges") or {}).get("AutoParameters"),
        "ConvergenceDetected": (
            (criteria.get("ConvergenceDetected") or {}).get("CompleteOnConvergence") == "Enabled"
        ),
    }
    found = [name for name, given in refused.items() if given]
    if found:
        raise ConfigurationError(
            f"syrtos does not support {', '.join(found)} of tuning jobs. Give one"
            " TrainingJobDefinition and ParameterRanges."
        )
    if "TrainingJobDefinition" not in request:
        raise ConfigurationError("A tuning job needs a TrainingJobDefinition.")


def _parents(request: Mapping[str, Any]) -> tuple[str, ...]:
    given = (request.get("WarmStartConfig") or {}).get("ParentHyperParameterTuningJobs") or ()
    strategy = request["HyperParameterTuningJobConfig"]["Strategy"]
    if given and strategy not in ("Bayesian", "Random"):
        raise ConfigurationError(
            f"A warm start is for the strategies Bayesian and Random. Received: {strategy}."
        )
    return tuple(dict.fromkeys(parent["HyperParameterTuningJobName"] for parent in given))


def _trials(config: Mapping[str, Any], space: Space, criteria: Mapping[str, Any]) -> int:
    asked = config["ResourceLimits"].get("MaxNumberOfTrainingJobs")
    if config["Strategy"] == "Grid":
        return min(spaces.combinations(space), asked or _MOST_TRIALS)
    ends = asked or criteria or config["ResourceLimits"].get("MaxRuntimeInSeconds")
    if not ends:
        raise ConfigurationError(
            "The search would never end: give ResourceLimits.MaxNumberOfTrainingJobs."
        )
    return min(asked or _MOST_TRIALS, _MOST_TRIALS)


def _resource(config: Mapping[str, Any]) -> tuple[int, int | None]:
    given = (config.get("StrategyConfig") or {}).get("HyperbandStrategyConfig") or {}
    if given and config["Strategy"] != "Hyperband":
        raise ConfigurationError("A HyperbandStrategyConfig is for the strategy Hyperband.")
    least, most = given.get("MinResource", 1), given.get("MaxResource")
    if most is not None and least > most:
        raise ConfigurationError(
            f"MinResource is at most MaxResource. Received: {least} and {most}."
        )
    return least, most
