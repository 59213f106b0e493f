"""The next hyperparameter values: a function of the seed, the trial's number and present trials."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from syrtos_jobs.tuning import studies
from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.space import grid
from syrtos_jobs.tuning.trials import SearchTrial

# Results before which points are random.
_RESULTS, _FEW_RESULTS = 10, 4


def suggest(
    search: Search, trials: Sequence[SearchTrial], number: int, before: Sequence[SearchTrial] = ()
) -> dict[str, str]:
    """Returns values for a new trial.

    Args:
        trials: trials that have ended or run; Bayesian search keeps away from points that are being
            tried.
        number: the new trial's number, which none of ``trials`` has.
        before: trials of earlier searches, whose objectives count like those of this one.
    """
    if search.strategy == "Grid":
        return _next_of_grid(search, trials)
    found = studies.study(search, _sampler(search, len(before) + number, bool(before)))
    if search.strategy != "Random":
        studies.add(found, search, before)
        studies.add(found, search, trials)
    return studies.texts(search.space, found.ask(studies.distributions(search.space)).params)


def _next_of_grid(search: Search, trials: Sequence[SearchTrial]) -> dict[str, str]:
    tried = {tuple(sorted(trial.tuned.items())) for trial in trials}
    return next(point for point in grid(search.space) if tuple(sorted(point.items())) not in tried)


def _sampler(search: Search, number: int, warm: bool) -> BaseSampler:
    """Returns a sampler that is seeded for this trial alone.

    Args:
        number: the trial's number, counted from the first trial of earlier searches, so that their
            points are not drawn again.
        warm: whether there are earlier searches: then a model is used as soon as there are four
            results, instead of ten.
    """
    # so a sampler has no state that a process could take with it: the same trials lead to the same
    # suggestion
    seed = (search.seed * 1_000_003 + number) % 2**32
    if search.strategy == "Random":
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, n_startup_trials=_FEW_RESULTS if warm else _RESULTS)
