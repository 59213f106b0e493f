"""The next step of a tuning job: a pure function of its trials, with no memory between looks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.trials import SearchTrial, best, not_improving

_ATTEMPTS = (
    5  # trials without an objective after which SageMaker gives up, if there was none with one
)


@dataclasses.dataclass(frozen=True)
class SearchDecision:
    """The actions to take now.

    Attributes:
        start: the number of trials to begin.
        stop: whether to stop all trials that run.
        status: the status with which the tuning job ends; empty: it goes on.
        reason: the reason why it fails.
    """

    start: int = 0
    stop: bool = False
    status: str = ""
    reason: str = ""


def decide(
    search: Search,
    trials: Sequence[SearchTrial],
    stopping: bool,
    seconds: float,
    refused: bool = False,
) -> SearchDecision:
    """Returns the actions to take now.

    Args:
        trials: all trials that were begun.
        stopping: whether the tuning job was asked to stop.
        seconds: the time since it was created.
        refused: whether a training job could not be created: no more are begun.
    """
    active = sum(trial.active for trial in trials)
    if stopping or _has_enough(search, trials, seconds):
        if active:
            return SearchDecision(stop=True)
        return SearchDecision(status="Stopped") if stopping else _final_decision(trials)
    if refused or len(trials) >= search.trials or _is_hopeless(search, trials):
        return SearchDecision() if active else _final_decision(trials)
    return SearchDecision(start=max(0, min(search.trials - len(trials), search.parallel - active)))


def _final_decision(trials: Sequence[SearchTrial]) -> SearchDecision:
    """Returns the end of a tuning job whose trials have all ended."""
    if any(trial.has_succeeded for trial in trials):
        return SearchDecision(status="Completed")
    if not trials:
        return SearchDecision(
            status="Failed", reason="No training job was begun in MaxRuntimeInSeconds."
        )
    attempts = f"{len(trials)} attempt{'s' * (len(trials) > 1)}"
    why = [trial.failure for trial in trials if trial.failure]
    names = [trial.name for trial in trials if trial.failure]
    last = f" The last error: {why[-1]} `syrtos logs {names[-1]}` shows its output." if why else ""
    return SearchDecision(
        status="Failed",
        reason=(
            f"No training job succeeded after {attempts}. For additional details, list the training"
            f" jobs of this tuning job.{last}"
        ),
    )


def _has_enough(search: Search, trials: Sequence[SearchTrial], seconds: float) -> bool:
    """Returns whether a completion criterion is met."""
    # each stays met once it is, so nothing has to be remembered until the trials that run have
    # ended
    found = best(search, trials)
    return (
        (search.seconds is not None and seconds > search.seconds)
        or (
            search.target is not None
            and found is not None
            and not search.better(search.target, found.objective or 0.0)
        )
        or (search.patience is not None and not_improving(search, trials) >= search.patience)
    )


def _is_hopeless(search: Search, trials: Sequence[SearchTrial]) -> bool:
    """Returns whether the first trials (at most 5) have all ended without an objective."""
    ended = [trial for trial in trials if not trial.active]
    return len(ended) >= min(_ATTEMPTS, search.trials) and not any(
        trial.has_succeeded for trial in trials
    )
