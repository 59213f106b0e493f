"""The list of jobs on the page.

It has the newest jobs that a search finds, the number of jobs of each kind, and the number of
workers in use.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, TypedDict

from sqlalchemy import ColumnElement

from syrtos_jobs.api.service import Service, describe_job
from syrtos_jobs.observation import metrics
from syrtos_jobs.observation.metrics import EpochFacts
from syrtos_jobs.requests.hyperparameters import decode
from syrtos_jobs.requests.secrecy import redact
from syrtos_jobs.store import runs
from syrtos_jobs.store.job_store import Record, columns

_MOST = 200  # jobs of an answer
_SEARCHED = 5000  # jobs, at most, in one search
_KEPT = _SEARCHED  # ended jobs, which do not change, in memory: those of a search, or none would be found there
_WAITING = ("Starting", "Pending", "Interrupted", "Restarting")
_GOING_ON = columns.status.in_(("InProgress", "Stopping"))
_KINDS: dict[str, tuple[ColumnElement[bool], ...]] = {
    "running": (_GOING_ON, columns.secondary.not_in(_WAITING)),
    "waiting": (_GOING_ON, columns.secondary.in_(_WAITING)),
    "failed": (columns.status == "Failed",),
    "completed": (columns.status == "Completed",),
    "stopped": (columns.status == "Stopped",),
}
_SHOWN = (
    "TrainingJobName", "TrainingJobStatus", "SecondaryStatus", "CreationTime", "TrainingStartTime", "TrainingEndTime", "ProgressInfo",
    "ResourceConfig",
)  # fmt: skip


class Glimpse(TypedDict):
    """The facts about a job that are shown at a glance.

    Attributes:
        metric: the name and the value that say most about it.
        left: an estimate of the seconds that are left of its training.
    """

    metric: tuple[str, float] | None
    left: float | None


class RunGlimpse(Glimpse):
    """A `Glimpse`, and the name of the job's script."""

    script: str


class Listing:
    """Answers about many jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ended: dict[tuple[str, float], RunGlimpse] = {}

    def answer(self, search: str, kind: str) -> dict[str, Any]:
        """Returns the newest jobs of a kind in which each word of ``search`` is found.

        An unknown kind means all jobs.
        """
        found, more = self._find_jobs(search.lower().split(), _KINDS.get(kind, ()))
        return {
            "jobs": [self._row(record) for record in found],
            "more": more,
            "counts": self._counts(),
            "capacity": self._service.limit,
            "used": self._workers_in_use(),
        }

    def _find_jobs(
        self, words: list[str], conditions: tuple[ColumnElement[bool], ...]
    ) -> tuple[list[Record], bool]:
        """Returns jobs, newest first, and whether there may be more."""
        # page by page, until there are enough: words can't be searched for in the database
        found: list[Record] = []
        after: int | None = 0
        while after is not None and after < _SEARCHED and len(found) < _MOST:
            order = [columns.created.desc(), columns.name.desc()]
            page, after = self._service.store.find(conditions, order, after, _MOST)
            found += [record for record in page if not words or self._fits(record, words)]
        return found[:_MOST], after is not None or len(found) > _MOST

    def _fits(self, record: Record, words: list[str]) -> bool:
        # without secrets: a search must not tell whether a guess at one is right
        request, state = redact(record.request), record.state
        given = {**record.tags, **(request.get("HyperParameters") or {})}
        pairs = [f"{name}={decode(value)}" for name, value in given.items()]
        texts = [
            record.name,
            script_of(record),
            self._of_run(record)["script"],
            state.status,
            state.secondary,
            *pairs,
        ]
        text = "\n".join(texts).lower()
        return all(word in text for word in words)

    def _counts(self) -> dict[str, int]:
        counts = dict.fromkeys(_KINDS, 0)
        for (status, secondary), count in self._service.store.counts().items():
            goes_on = "waiting" if secondary in _WAITING else "running"
            counts[status.lower() if status.lower() in counts else goes_on] += count
        return counts

    def _workers_in_use(self) -> int:
        """Returns the number of workers in use.

        Workers are used by jobs that were started and do not wait to be started again.
        """
        active = self._service.store.active()
        return sum(
            job.slots for job in active if job.attempts and job.secondary not in _WAITING[1:]
        )

    def _row(self, record: Record) -> dict[str, object]:
        job = describe_job(record)
        row = {name: job[name] for name in _SHOWN if name in job} | self._of_run(record)
        return row | ({"reason": gist(record.failure)} if record.failure else {})

    def _of_run(self, record: Record) -> RunGlimpse:
        """Returns the facts from the job's folder."""
        # an ended job's folder does not change, and is read only once; the time tells jobs of one
        # name apart
        key = (record.name, record.created)
        if key in self._ended:
            return self._ended[key]
        folder = self._service.home.job(record.name)
        script = runs.read(folder).get("program", {}).get("name") or script_of(record)
        seen = glimpse(record, [metrics.epochs(run) for run in runs.folders(folder)])
        facts: RunGlimpse = {**seen, "script": script}
        if record.state.final:
            if len(self._ended) >= _KEPT:
                self._ended.clear()
            self._ended[key] = facts
        return facts


def glimpse(record: Record, epochs: Sequence[Sequence[EpochFacts]]) -> Glimpse:
    """Returns the value that says most about a job, and an estimate of the seconds that are left.

    There is an estimate only while the job trains.

    Args:
        record: the job.
        epochs: the epochs of each of its run directories.
    """
    metric = metrics.headline(
        next((found for found in reversed(epochs) if found), []), record.metrics
    )
    left = None
    if record.state.secondary == "Training" and epochs:
        began = record.state.transitions[-1]["StartTime"]
        left = metrics.seconds_left(epochs[-1], began, time.time())
    return {"metric": metric, "left": left}


def script_of(record: Record) -> str:
    """Returns the script that a request itself names; SDK v3 names it in a file of a channel."""
    named = decode((record.request.get("HyperParameters") or {}).get("sagemaker_program", ""))
    algorithm = record.request.get("AlgorithmSpecification") or {}
    command = [*algorithm.get("ContainerEntrypoint", ()), *algorithm.get("ContainerArguments", ())]
    return (
        str(named)
        or next((word for word in command if word.endswith((".py", ".sh"))), "").rpartition("/")[2]
    )


def gist(reason: str) -> str:
    """Returns the most telling line of a failure's reason.

    That line is the script's message if there is one, or else the first line.
    """
    said = re.search(r'^ErrorMessage "(.+)"', reason, re.MULTILINE)
    return said[1] if said else (reason.strip().splitlines() or [""])[0]
