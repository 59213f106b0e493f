"""The implementation of SageMaker's tuning operations.

Each takes and returns the parameters of its operation as Python values. Requests have been
validated by SageMaker's service model; times are seconds since 1970.
"""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from syrtos.errors import ConfigurationError
from syrtos_jobs.api import service as training
from syrtos_jobs.api.service import ApiError, Service, before_deletion, page_of
from syrtos_jobs.requests.secrecy import redact
from syrtos_jobs.store.tunings import TrialEntry, TuningRecord, columns
from syrtos_jobs.tuning import requests, search, space, trial_rows, trials, warm_start
from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.trials import SearchTrial


class Operations:
    """The tuning jobs of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def create_hyper_parameter_tuning_job(self, request: dict[str, Any]) -> dict[str, object]:
        """Writes down a tuning job, whose first training jobs are created at once."""
        name, now = request["HyperParameterTuningJobName"], time.time()
        seed = random.SystemRandom().randrange(2**31)
        wanted = self._check_request(request, seed)
        record = TuningRecord(
            name=name,
            request=request,
            tags={tag["Key"]: tag["Value"] for tag in request.get("Tags") or ()},
            status="InProgress",
            created=now,
            modified=now,
            seed=wanted.seed,
            inherited=self._inherited_trials(wanted),
        )
        if not self._service.tunings.add(record):
            raise ApiError(
                "ResourceInUse",
                f"Tuning job names must be unique: there is a tuning job {name} already. Choose"
                " another name.",
            )
        return {"HyperParameterTuningJobArn": requests.arn(name)}

    def describe_hyper_parameter_tuning_job(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Returns everything about a tuning job."""
        record = self._find_record(request)
        wanted = search_of(record)
        answer = describe_tuning_job(
            record, wanted, trial_rows.trials_of(self._service.store, wanted, record)
        )
        if (
            wanted.parents
            and not wanted.transfer
            and (overall := self._best_of_all(record, wanted))
        ):
            answer["OverallBestTrainingJob"] = overall
        return answer

    def list_hyper_parameter_tuning_jobs(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Returns a page of tuning jobs."""
        by = {"CreationTime": columns.created, "Status": columns.status}.get(
            request.get("SortBy", ""), columns.name
        )
        order = [
            column.desc() if request.get("SortOrder") == "Descending" else column
            for column in (by, columns.name)
        ]
        limit, after = request.get("MaxResults") or 10, page_of(request.get("NextToken"))
        records, following = self._service.tunings.find(
            training.conditions(request, columns), order, after, limit
        )
        answer: dict[str, object] = {
            "HyperParameterTuningJobSummaries": [self._summary(record) for record in records]
        }
        return answer | ({"NextToken": str(following)} if following is not None else {})

    def list_training_jobs_for_hyper_parameter_tuning_job(
        self, request: Mapping[str, Any]
    ) -> dict[str, object]:
        """Returns a page of the training jobs of a tuning job."""
        record = self._find_record(request)
        wanted = search_of(record)
        some = [
            trial
            for trial in trial_rows.trials_of(self._service.store, wanted, record)
            if request.get("StatusEquals", trial.status) == trial.status
        ]
        some = _sort_trials(
            some, request.get("SortBy", "Name"), request.get("SortOrder") == "Descending"
        )
        limit, after = request.get("MaxResults") or 10, page_of(request.get("NextToken"))
        answer: dict[str, object] = {
            "TrainingJobSummaries": [
                summary(wanted, trial) for trial in some[after : after + limit]
            ]
        }
        return answer | ({"NextToken": str(after + limit)} if len(some) > after + limit else {})

    def stop_hyper_parameter_tuning_job(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Asks a tuning job to end, with its training jobs; the results of finished ones stay."""
        record = self._find_record(request)
        if record.status != "InProgress":
            raise ApiError(
                "ValidationException",
                f"The request was rejected because the tuning job is in status {record.status}.",
            )
        jobs = trial_rows.jobs_of(self._service.store, record.trials)

        def mark_stopping(now: TuningRecord) -> TuningRecord | None:
            over = {name for name, job in jobs.items() if job.state.final}
            # by this `go_on` tells trials that were cut off from those that had ended by themselves
            entries = tuple(
                dataclasses.replace(entry, interrupted=entry.name not in over)
                for entry in now.trials
            )
            after = dataclasses.replace(
                now, status="Stopping", modified=time.time(), trials=entries
            )
            return after if now.status == "InProgress" else None

        self._service.tunings.change(record.name, mark_stopping)
        return {}

    def delete_hyper_parameter_tuning_job(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Deletes a tuning job that has ended; its training jobs stay."""
        record = self._find_record(request)
        if not record.final:
            raise ApiError(
                "ResourceInUse",
                f"Tuning job {record.name} is {record.status}: {before_deletion(record.status)}.",
            )
        self._service.tunings.remove(record.name)
        return {}

    def go_on(self, name: str) -> None:
        """Continues a tuning job that has ended, with the results of trials that had finished."""
        record = self._find_record({"HyperParameterTuningJobName": name})
        jobs = trial_rows.jobs_of(self._service.store, record.trials)
        done = {name for name, job in jobs.items() if job.state.status == "Completed"}
        wanted = search_of(record)
        results = {
            trial.name
            for trial in trial_rows.trials_of(self._service.store, wanted, record)
            if trial.has_succeeded
        }

        def mark_going_on(now: TuningRecord) -> TuningRecord | None:
            # one that was stopped goes on without the trials that were interrupted, one that has
            # failed without those that have no result: both are begun anew
            stopped = now.status == "Stopped"
            kept = tuple(
                dataclasses.replace(e, interrupted=False)
                for e in now.trials
                if (not e.interrupted or e.name in done if stopped else e.name in results)
            )
            changed = {
                "status": "InProgress",
                "ended": None,
                "modified": time.time(),
                "failure": "",
            }
            return dataclasses.replace(now, trials=kept, **changed) if now.final else None

        self._service.tunings.change(name, mark_going_on)

    # -- helpers -------------------------------------------------------------------------------

    def _check_request(self, request: Mapping[str, Any], seed: int) -> Search:
        name = request["HyperParameterTuningJobName"]
        if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,31}", name):
            raise ApiError(
                "ValidationException",
                "A tuning job's name has letters, digits and hyphens, up to 32. Received:"
                f" {name!r}.",
            )
        try:
            wanted = search.read(request, seed)
        except ConfigurationError as error:
            raise ApiError("ValidationException", str(error)) from error
        # what is wrong with every training job is said now, and not by the first that fails
        example = requests.of_trial(
            request, wanted.metric, f"{name}-001-00000000", space.corner(wanted.space)
        )
        self._service.check_request(example)
        return wanted

    def _inherited_trials(self, wanted: Search) -> tuple[TrialEntry, ...]:
        try:
            return warm_start.inherited_trials(self._service, wanted)
        except ConfigurationError as error:
            raise ApiError("ValidationException", str(error)) from error

    def _best_of_all(self, record: TuningRecord, wanted: Search) -> dict[str, object] | None:
        """Returns the best training job of this tuning job, its inherited trials included."""
        entries = {entry.name: entry for entry in (*record.inherited, *record.trials)}
        jobs = trial_rows.jobs_of(self._service.store, list(entries.values()))
        best = trials.best(
            wanted, [trial_rows.trial_of(wanted, entries[name], job) for name, job in jobs.items()]
        )
        if best is None:
            return None
        return {**summary(wanted, best), "TuningJobName": entries[best.name].parent or record.name}

    def _find_record(self, request: Mapping[str, Any]) -> TuningRecord:
        record = self._service.tunings.get(request["HyperParameterTuningJobName"])
        if record is None:
            raise ApiError(
                "ResourceNotFound", "Amazon SageMaker can't find a tuning job with this name."
            )
        return record

    def _summary(self, record: TuningRecord) -> dict[str, object]:
        wanted = search_of(record)
        some = trial_rows.trials_of(self._service.store, wanted, record)
        config = record.request["HyperParameterTuningJobConfig"]
        return {
            **_common(record),
            "Strategy": wanted.strategy,
            "ResourceLimits": config["ResourceLimits"],
            "TrainingJobStatusCounters": trials.status_counters(some),
            "ObjectiveStatusCounters": trials.objective_counters(some),
        }


def search_of(record: TuningRecord) -> Search:
    """Returns the search of a tuning job, read from its request."""
    return search.read(record.request, record.seed)


def describe_tuning_job(
    record: TuningRecord, wanted: Search, some: Sequence[SearchTrial]
) -> dict[str, object]:
    """Returns DescribeHyperParameterTuningJob's answer."""
    config = {
        "TrainingJobEarlyStoppingType": "Off",
        **record.request["HyperParameterTuningJobConfig"],
    }
    answer: dict[str, object] = {
        **_common(record),
        "HyperParameterTuningJobConfig": config,
        "TrainingJobDefinition": redact(requests.definition_of(record.request, wanted.metric)),
        "TrainingJobStatusCounters": trials.status_counters(some),
        "ObjectiveStatusCounters": trials.objective_counters(some),
        "TuningJobCompletionDetails": {
            "NumberOfTrainingJobsObjectiveNotImproving": trials.not_improving(wanted, some)
        },
        "ConsumedResources": {
            "RuntimeInSeconds": int((record.ended or time.time()) - record.created)
        },
    }
    if "WarmStartConfig" in record.request:
        answer["WarmStartConfig"] = record.request["WarmStartConfig"]
    if best := trials.best(wanted, some):
        answer["BestTrainingJob"] = summary(wanted, best)
    return answer | ({"FailureReason": record.failure} if record.failure else {})


def summary(wanted: Search, trial: SearchTrial) -> dict[str, object]:
    """Returns a training job's entry in the list of its tuning job."""
    answer: dict[str, object] = {
        "TrainingJobName": trial.name,
        "TrainingJobArn": training.arn(trial.name),
        "CreationTime": trial.created,
        "TrainingJobStatus": trial.status,
        "TunedHyperParameters": dict(trial.tuned),
        "ObjectiveStatus": trials.objective_status(trial),
    }
    times = {"TrainingStartTime": trial.started, "TrainingEndTime": trial.ended}
    answer |= {key: when for key, when in times.items() if when is not None}
    if trial.objective is not None and (trial.has_succeeded or trial.active):
        kind = "Maximize" if wanted.maximize else "Minimize"
        final = {"Type": kind, "MetricName": wanted.metric, "Value": trial.objective}
        answer["FinalHyperParameterTuningJobObjectiveMetric"] = final
    return answer | ({"FailureReason": trial.failure} if trial.failure else {})


def _common(record: TuningRecord) -> dict[str, object]:
    ended = {"HyperParameterTuningEndTime": record.ended} if record.ended else {}
    return {
        "HyperParameterTuningJobName": record.name,
        "HyperParameterTuningJobArn": requests.arn(record.name),
        "HyperParameterTuningJobStatus": record.status,
        "CreationTime": record.created,
        "LastModifiedTime": record.modified,
        **ended,
    }


def _sort_trials(some: Sequence[SearchTrial], by: str, descending: bool) -> list[SearchTrial]:
    """Sorts training jobs; by objective, those without one come last in either order."""
    if by == "FinalObjectiveMetricValue":
        measured = [trial for trial in some if trial.objective is not None]
        without = [trial for trial in some if trial.objective is None]
        return [
            *sorted(measured, key=lambda trial: trial.objective or 0.0, reverse=descending),
            *without,
        ]
    # the name makes the order of equals the same for each page
    keys = {"CreationTime": lambda t: (t.created, t.name), "Status": lambda t: (t.status, t.name)}
    return sorted(some, key=keys.get(by, lambda t: t.name), reverse=descending)
