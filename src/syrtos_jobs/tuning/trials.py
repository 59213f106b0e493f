"""The facts about trials, and conclusions from them: counts, and the best trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from syrtos_jobs.tuning.search import Search


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchTrial:
    """A training job of a tuning job.

    Attributes:
        number: counted from 1.
        name: the training job's name.
        tuned: its values of the hyperparameters that are tuned.
        status: ``TrainingJobStatus``.
        objective: the last value of the metric; None without one.
        values: times (seconds since 1970) and values of the metric, for trials that may be ended
            early; empty for others.
        created, started, ended: seconds since 1970.
        failure: the reason why it failed.
    """

    number: int
    name: str
    tuned: Mapping[str, str]
    status: str
    objective: float | None = None
    values: tuple[tuple[float, float], ...] = ()
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    failure: str = ""

    @property
    def active(self) -> bool:
        """Returns whether the trial has not ended."""
        return self.status not in ("Completed", "Failed", "Stopped")

    @property
    def has_succeeded(self) -> bool:
        """Returns whether the trial's objective counts."""
        # so does that of a trial that was ended early
        return self.status in ("Completed", "Stopped") and self.objective is not None


def best(search: Search, trials: Sequence[SearchTrial]) -> SearchTrial | None:
    """Returns the trial with the best objective, the first of equals; None if none counts."""
    return next(iter(rank_trials(search, trials)), None)


def rank_trials(search: Search, trials: Sequence[SearchTrial]) -> list[SearchTrial]:
    """Returns the trials whose objective counts, the best first."""
    found = [trial for trial in trials if trial.has_succeeded]
    sign = -1 if search.maximize else 1
    return sorted(found, key=lambda trial: (sign * (trial.objective or 0.0), trial.number))


def not_improving(search: Search, trials: Sequence[SearchTrial]) -> int:
    """Returns the number of successful trials that have ended since the best one."""
    found = best(search, trials)
    return (
        sum((t.ended or 0.0) > (found.ended or 0.0) for t in trials if t.has_succeeded)
        if found
        else 0
    )


def status_counters(trials: Sequence[SearchTrial]) -> dict[str, int]:
    """Returns ``TrainingJobStatusCounters``."""
    failed = [trial for trial in trials if trial.status == "Failed"]
    retryable = sum(trial.failure.startswith("InternalServerError") for trial in failed)
    return {
        "Completed": sum(trial.status == "Completed" for trial in trials),
        "InProgress": sum(trial.active for trial in trials),
        "RetryableError": retryable,
        "NonRetryableError": len(failed) - retryable,
        "Stopped": sum(trial.status == "Stopped" for trial in trials),
    }


def objective_counters(trials: Sequence[SearchTrial]) -> dict[str, int]:
    """Returns ``ObjectiveStatusCounters``."""
    found = [objective_status(trial) for trial in trials]
    return {name: found.count(name) for name in ("Succeeded", "Pending", "Failed")}


def objective_status(trial: SearchTrial) -> str:
    """Returns ``ObjectiveStatus``."""
    return "Pending" if trial.active else "Succeeded" if trial.has_succeeded else "Failed"
