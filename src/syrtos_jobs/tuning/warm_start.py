"""The knowledge of a tuning job from earlier ones: their trials that are points of its own space.

If data and algorithm are the same, the objectives of the earlier trials are results like its own.
If they are not, the best points of the earlier jobs are tried first.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from syrtos.errors import ConfigurationError
from syrtos_jobs.api.service import Service
from syrtos_jobs.store.tunings import TrialEntry
from syrtos_jobs.tuning import search, space, trial_rows
from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.trials import SearchTrial, rank_trials

_TRIED_FIRST = 3  # of each earlier tuning job


def inherited_trials(service: Service, wanted: Search) -> tuple[TrialEntry, ...]:
    """Returns the trials, own and inherited, of all earlier tuning jobs that a new one names.

    Raises:
        ConfigurationError: an earlier tuning job does not exist, has not ended or has another
            objective, or there is nothing to learn from them.
    """
    entries: dict[str, TrialEntry] = {}
    for name in wanted.parents:
        record = service.tunings.get(name)
        if record is None:
            raise ConfigurationError(
                f"There is no tuning job {name} to learn from (WarmStartConfig, or `warm_start`)."
            )
        if not record.final:
            raise ConfigurationError(
                f"The tuning job {name} has not ended yet: learn from it (WarmStartConfig, or"
                " `warm_start`) when it has."
            )
        theirs = search.read(record.request, record.seed)
        if (theirs.metric, theirs.maximize) != (wanted.metric, wanted.maximize):
            goals = [
                f"{'maximize' if one.maximize else 'minimize'} {one.metric}"
                for one in (theirs, wanted)
            ]
            raise ConfigurationError(
                f"A warm start needs the same objective. {name}: {goals[0]}; now: {goals[1]}."
            )
        entries |= {entry.name: dataclasses.replace(entry, parent=name) for entry in record.trials}
        # objectives of other data than the parent's own can't be compared, but their points may be
        # good ones
        if wanted.transfer or not theirs.transfer:
            entries |= {entry.name: entry for entry in record.inherited}
    results = tuple(entries.values())
    if wanted.parents and not known_trials(service, wanted, results):
        raise ConfigurationError(
            f"There is nothing to learn from {', '.join(wanted.parents)}: no trial of theirs has a"
            f" result and is in the ranges of {', '.join(space.names(wanted.space))}. Widen the"
            " ranges, or leave out the warm start."
        )
    return results


def known_trials(
    service: Service, wanted: Search, entries: Sequence[TrialEntry]
) -> list[SearchTrial]:
    """Returns the inherited trials that have an objective and are points of the space."""
    jobs = trial_rows.jobs_of(service.store, entries)
    trials: list[SearchTrial] = []
    for entry in entries:
        # from the training job, and not the entry: what is tuned now may have been static then
        point = (
            space.within(wanted.space, jobs[entry.name].request["HyperParameters"])
            if entry.name in jobs
            else None
        )
        trial = trial_rows.trial_of(wanted, entry, jobs[entry.name]) if point else None
        if trial and point and trial.has_succeeded:
            trials.append(dataclasses.replace(trial, number=len(trials) + 1, tuned=point))
    return trials


def tried_first(
    wanted: Search, before: Sequence[SearchTrial], parents: Mapping[str, str]
) -> list[Mapping[str, str]]:
    """Returns the best points of each earlier tuning job, half of all trials at most.

    The best of each job comes first, then the second of each, and so on.

    Args:
        before: the inherited trials.
        parents: the tuning job of each trial, by the trial's name.
    """
    # as in Feurer et al., Initializing Bayesian hyperparameter optimization via meta-learning, AAAI
    # 2015
    by_parent: dict[str, dict[tuple[tuple[str, str], ...], Mapping[str, str]]] = {}
    for trial in rank_trials(wanted, before):
        by_parent.setdefault(parents[trial.name], {}).setdefault(
            tuple(sorted(trial.tuned.items())), trial.tuned
        )
    of_places = itertools.zip_longest(
        *(list(points.items())[:_TRIED_FIRST] for points in by_parent.values())
    )
    points = dict(one for place in of_places for one in place if one)
    return list(points.values())[: max(1, wanted.trials // 2)]
