"""A job's record as one attempt at it changes it, and the attempt's own lines in the job's log."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from syrtos.launch.outcome import Outcome
from syrtos_jobs.observation import metrics
from syrtos_jobs.observation.logs import LogStream
from syrtos_jobs.requests import states
from syrtos_jobs.requests.secrecy import Redactor
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Record, Store
from syrtos_jobs.store.reserve import Reserve

_LONGEST_REASON = 1024
_OF_ANOTHER_ATTEMPT = ("Restarting", "Pending")


class AttemptSupersededError(Exception):
    """Another attempt at the job will be started.

    A service that was started again did not see this runner, which had not taken its lock yet.
    """


class JobOverError(Exception):
    """The job is over before it has trained."""


class AttemptRecord:
    """The record of a job, which an attempt moves from status to status.

    Attributes:
        why: the secondary status in which the job is to end; empty: nothing has asked for its end.
        why_again: a sentence that says why the job is started again, where it is.
        redact: takes secrets out of a text.
        metrics: the metrics that the job's definitions find in its log.
    """

    def __init__(
        self,
        store: Store,
        record: Record,
        redact: Redactor,
        stream: LogStream,
        objective: str,
        epochs: Callable[[], Sequence[metrics.EpochFacts]],
    ) -> None:
        """Makes an object for a new attempt.

        Args:
            store: the place of the record.
            record: the record as it is.
            redact: takes secrets out of a text.
            stream: the log that gets the attempt's own lines.
            objective: the metric by which a tuning job judges the job; empty for none.
            epochs: returns the facts about the epochs trained so far.
        """
        self.why = self.why_again = ""
        self.redact = redact
        self._store, self._name, self._stream = store, record.name, stream
        self._objective, self._epochs = objective, epochs
        definitions = record.request["AlgorithmSpecification"].get("MetricDefinitions")
        self.metrics = metrics.Metrics(definitions or ())
        self.metrics.values.update(record.metrics)

    def say(self, text: str) -> None:
        """Writes lines of the attempt itself into the job's log."""
        self._stream.write([self.redact(line) for line in text.splitlines()])

    def move(self, secondary: str) -> None:
        """Moves the job to its next secondary status, unless a stop was requested just now.

        Raises:
            Ended: a stop was requested, so only the upload is left.
            AttemptSupersededError: another attempt at the job was asked for.
        """

        def move_on(record: Record) -> Record | None:
            follows = secondary in states.NEXT.get(record.state.secondary, ())
            return record.with_transition(secondary) if follows else None

        after = self._store.change(self._name, move_on)
        if after is not None and after.state.secondary in _OF_ANOTHER_ATTEMPT:
            raise AttemptSupersededError
        if after is None or after.state.secondary != secondary:
            self.why = self.why or "Stopped"
            raise JobOverError

    def restart_workers(self, last: Outcome) -> bool:
        """Records that workers start again after ``last``; returns False if the job is to end."""

        def mark_restarted(record: Record) -> Record | None:
            if self.why or record.state.secondary != "Training":
                return None
            # SageMaker's states know no restart of workers alone: the job goes through those of a
            # new attempt
            record = record.with_transition(
                "Restarting", f"{last} The job's workers are started again."
            )
            for status in ("Starting", "Downloading", "Training"):
                record = record.with_transition(status)
            return record

        after = self._store.change(self._name, mark_restarted)
        if after is None or after.state.secondary != "Training":
            self.why = self.why or "Stopped"
        return not self.why

    def finish(self, secondary: str) -> None:
        """Ends the job with a secondary status, or has it started again."""
        self.save()

        def mark_finished(record: Record) -> Record | None:
            stopped = record.state.status == "Stopping" and secondary in states.AGAIN
            message = self.why_again if secondary in states.AGAIN else None
            return record.with_end(
                "Stopped" if stopped else secondary, message or None, yields=False
            )

        self._store.change(self._name, mark_finished)

    def fail(self, reason: str) -> None:
        """Ends the job as failed."""
        text = self.redact(reason)
        # a full disk takes no line, but may take the record
        with contextlib.suppress(OSError):
            self.say(text[:_LONGEST_REASON])
        self.save()
        fail(self._store, self._name, text)

    def save(self) -> None:
        """Writes down the metrics and the progress of training."""
        epochs = self._epochs()
        logged = metrics.logged_objective(epochs, self._objective, self.metrics.diverged)
        found, values = metrics.progress(epochs), {**logged, **self.metrics.values}

        def change_record(record: Record) -> Record | None:
            after = dataclasses.replace(
                record, metrics=values, progress=found or record.progress, modified=time.time()
            )
            same = (after.metrics, after.progress) == (record.metrics, record.progress)
            return None if same else after

        self._store.change(self._name, change_record)


def fail(store: Store, name: str, reason: str) -> None:
    """Ends a job as failed; ``reason`` has no secrets."""
    # no database takes a NUL in a text
    text = reason.replace("\0", "")[:_LONGEST_REASON]
    store.change(name, lambda record: record.with_failure(text))


def keep_small(folders: Sequence[Path], place: Path, reserve: Reserve) -> str:
    """Moves folders that did not fill the disk to ``place``; returns a sentence about it, if any."""
    kept = 0
    for number, folder in enumerate(folders):
        if reserve.outweighs(folder):
            with contextlib.suppress(OSError):
                place.mkdir(exist_ok=True)
                folder.rename(place / str(number))
                kept += 1
    return f" Its model is kept in {place}." if kept else ""


def leave_nothing(home: Home, name: str) -> None:
    """Removes an attempt's working files: inputs and uploaded outputs. Logs and ledgers stay."""
    for path in ("instances", "shared", "python"):
        shutil.rmtree(home.job(name) / path, ignore_errors=True)
    home.forget_snapshots(name)
