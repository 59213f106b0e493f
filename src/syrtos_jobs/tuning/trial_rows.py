"""The trials of a tuning job, read from the rows of its training jobs."""

from __future__ import annotations

from collections.abc import Sequence

from syrtos_jobs.observation import series
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Record, Store, columns
from syrtos_jobs.store.tunings import TrialEntry, TuningRecord
from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.trials import SearchTrial

_AT_ONCE = 500  # names in a query: databases bound the number of its parameters


def jobs_of(store: Store, entries: Sequence[TrialEntry]) -> dict[str, Record]:
    """Returns the existing training jobs of some trials, by name."""
    names = [entry.name for entry in entries]
    parts = [names[k : k + _AT_ONCE] for k in range(0, len(names), _AT_ONCE)]
    return {
        record.name: record
        for part in parts
        for record in store.find([columns.name.in_(part)], [], 0, len(part))[0]
    }


def trials_of(store: Store, search: Search, record: TuningRecord) -> list[SearchTrial]:
    """Returns the trials whose training jobs exist, in the order in which they were begun."""
    jobs = jobs_of(store, record.trials)
    return [
        trial_of(search, entry, jobs[entry.name]) for entry in record.trials if entry.name in jobs
    ]


def trial_of(search: Search, entry: TrialEntry, job: Record) -> SearchTrial:
    """Returns a trial, without its values over time."""
    started = [t["StartTime"] for t in job.state.transitions if t["Status"] == "Downloading"]
    return SearchTrial(
        number=entry.number,
        name=job.name,
        tuned=entry.tuned,
        status=job.state.status,
        objective=job.metrics[search.metric][0] if search.metric in job.metrics else None,
        created=job.created,
        started=started[0] if started else None,
        ended=job.state.transitions[-1]["StartTime"] if job.state.final else None,
        failure=job.failure,
    )


def values_of(home: Home, search: Search, name: str) -> tuple[tuple[float, float], ...]:
    """Returns the values of the metric that a training job has reported, with their times.

    They are the values found in its output, or else the logs of Keras at the ends of epochs. Values
    that were found at one time are all given as their mean.
    """
    folder = home.job(name)
    samples = (
        series.of_job(folder, True).get(search.metric)
        or series.of_job(folder, False).get(search.metric)
        or []
    )
    return tuple(
        (sample.time, sample.sum / sample.count)
        for sample in samples
        for _ in range(int(sample.count))
    )
