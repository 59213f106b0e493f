"""The next values of the hyperparameters: a function of the seed, the trial's number and the trials there are."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from syrtos.jobs.tuning import studies
from syrtos.jobs.tuning.search import Search
from syrtos.jobs.tuning.space import grid
from syrtos.jobs.tuning.trials import Trial


def suggest(search: Search, trials: Sequence[Trial], number: int, before: Sequence[Trial] = ()) -> dict[str, str]:
    """Values for a trial of this number, which none of ``trials`` has.

    Args:
        trials: that have ended or go on; Bayesian search keeps away from what is being tried.
        before: of earlier searches, whose objectives count like those of this one.
    """
    if search.strategy == "Grid":
        return _next_of_grid(search, trials)
    found = studies.study(search, _sampler(search, number))
    if search.strategy != "Random":
        studies.add(found, search, before)
        studies.add(found, search, trials)
    return studies.texts(search.space, found.ask(studies.distributions(search.space)).params)


def _next_of_grid(search: Search, trials: Sequence[Trial]) -> dict[str, str]:
    tried = {tuple(sorted(trial.tuned.items())) for trial in trials}
    return next(point for point in grid(search.space) if tuple(sorted(point.items())) not in tried)


def _sampler(search: Search, number: int) -> BaseSampler:
    """Seeded for this trial alone: a sampler has no state that a process could take with it."""
    seed = (search.seed * 1_000_003 + number) % 2**32
    return RandomSampler(seed=seed) if search.strategy == "Random" else TPESampler(seed=seed)
