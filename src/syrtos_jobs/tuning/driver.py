"""The driver of tuning jobs.

It creates their training jobs, ends those that are not worth continuing, and writes down how tuning
jobs end. All that it knows is in the store.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from syrtos_jobs.api.service import ApiError, Service
from syrtos_jobs.complaints import complain, describe
from syrtos_jobs.polling import PollingThread
from syrtos_jobs.store.tunings import TrialEntry, TuningRecord
from syrtos_jobs.tuning import printed_metrics, requests, trial_rows, warm_start
from syrtos_jobs.tuning.decision import SearchDecision, decide
from syrtos_jobs.tuning.operations import search_of
from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.trials import SearchTrial

_LOOK = 0.4
_LONGEST_REASON = 1024


class Driver(PollingThread):
    """Carries on the tuning jobs of a service that have not ended.

    Args:
        changed: called when a training job was created or stopped.
    """

    def __init__(self, service: Service, changed: Callable[[], None]) -> None:
        super().__init__("driver of tuning jobs", _LOOK)
        self._service, self._changed = service, changed
        # by name; they don't change any more, and are read only once
        self._ended: dict[str, SearchTrial] = {}

    def report_failure(self, error: Exception) -> None:
        """Prints that the tuning jobs could not be looked at."""
        complain(f"the tuning jobs could not be looked at: {describe(error)}")

    def look(self) -> None:
        """Carries on each tuning job that has not ended; an error in one does not stop others."""
        active = self._service.tunings.active()
        for record in active:
            try:
                self._carry_on(record)
            except Exception as error:
                # an error of one tuning job must not hold the others up
                complain(
                    f"the tuning job {record.name} could not be carried on: {type(error).__name__}:"
                    f" {describe(error)}"
                )
        if not active:
            self._ended.clear()

    def _carry_on(self, record: TuningRecord) -> None:
        # first of all, or trials that were written down and do not exist would not be counted
        record = self._complete(record)
        search = search_of(record)
        trials = self._trials(record, search)
        stopping, seconds = record.status == "Stopping", time.time() - record.created
        decision = decide(search, trials, stopping, seconds, refused=bool(record.failure))
        self._stop(trials if decision.stop else self._hopeless(search, trials))
        for _ in range(decision.start):
            begun = self._begin(record, search, trials)
            if begun is None:
                # the reason is in the record by now, where the next look finds it
                break
            trials.append(begun)
        if decision.status:
            reason = record.failure or (decision.reason and self._why(search, trials, decision))
            self._end(record.name, decision.status, reason)

    def _complete(self, record: TuningRecord) -> TuningRecord:
        """Creates the training jobs that were written down and do not exist.

        If the tuning job is ending, or can't begin more trials, these trials are struck out
        instead.

        Returns:
            The tuning job after that.
        """
        unknown = [entry for entry in record.trials if entry.name not in self._ended]
        jobs = trial_rows.jobs_of(self._service.store, unknown)
        missing = {entry.name for entry in unknown if entry.name not in jobs}
        if not missing:
            return record
        if record.status == "InProgress" and not record.failure:
            entries = [entry for entry in record.trials if entry.name in missing]
            if all(self._create(record, search_of(record), entry) for entry in entries):
                return record
            return self._complete(self._service.tunings.get(record.name) or record)
        return self._strike_out(record, missing, record.failure)

    def _strike_out(
        self, record: TuningRecord, names: Collection[str], failure: str
    ) -> TuningRecord:
        """Removes from the record trials whose training jobs were not created; notes the reason."""

        def remove_trials(now: TuningRecord) -> TuningRecord:
            kept = tuple(entry for entry in now.trials if entry.name not in names)
            return dataclasses.replace(now, trials=kept, failure=failure[:_LONGEST_REASON])

        return self._service.tunings.change(record.name, remove_trials) or record

    def _trials(self, record: TuningRecord, search: Search) -> list[SearchTrial]:
        with_values = search.early_stopping or search.strategy == "Hyperband"
        jobs = trial_rows.jobs_of(
            self._service.store, [entry for entry in record.trials if entry.name not in self._ended]
        )
        trials: list[SearchTrial] = []
        for entry in record.trials:
            trial = self._ended.get(entry.name) or trial_rows.trial_of(
                search, entry, jobs[entry.name]
            )
            if entry.name not in self._ended and with_values:
                trial = dataclasses.replace(
                    trial, values=trial_rows.values_of(self._service.home, search, trial.name)
                )
            if not trial.active:
                self._ended[entry.name] = trial
            trials.append(trial)
        return trials

    def _hopeless(self, search: Search, trials: Sequence[SearchTrial]) -> list[SearchTrial]:
        if not any(trial.active and trial.values for trial in trials):
            return []
        # only here: Optuna takes a quarter of a second to import
        from syrtos_jobs.tuning.pruning import hopeless

        return hopeless(search, trials)

    def _stop(self, trials: Sequence[SearchTrial]) -> None:
        stopped = [trial for trial in trials if trial.status == "InProgress"]
        for trial in stopped:
            try:
                self._service.stop_training_job({"TrainingJobName": trial.name})
            except ApiError:
                continue  # it has just ended
        if stopped:
            self._changed()

    def _begin(
        self, record: TuningRecord, search: Search, trials: Sequence[SearchTrial]
    ) -> SearchTrial | None:
        """Chooses values, notes them, and creates the training job; None if it can't be created."""
        taken = {trial.number for trial in trials}
        # the least free one: trials that were struck out leave gaps
        number = next(number for number in range(1, len(taken) + 2) if number not in taken)
        name = f"{record.name}-{number:03d}-{secrets.token_hex(4)}"
        entry = TrialEntry(number, name, self._suggest(record, search, trials, number))

        def add_trial(now: TuningRecord) -> TuningRecord | None:
            after = dataclasses.replace(now, trials=(*now.trials, entry), modified=time.time())
            return after if now.status == "InProgress" else None

        # before the training job is created: if the service dies in between, `_complete` creates it
        # later
        after = self._service.tunings.change(record.name, add_trial)
        going_on = after is not None and after.status == "InProgress"
        if going_on and not self._create(record, search, entry):
            return None
        return SearchTrial(number=number, name=name, tuned=entry.tuned, status="InProgress")

    def _suggest(
        self, record: TuningRecord, search: Search, trials: Sequence[SearchTrial], number: int
    ) -> Mapping[str, str]:
        from syrtos_jobs.tuning.suggestion import suggest

        before = warm_start.known_trials(self._service, search, record.inherited)
        if not search.transfer:
            return suggest(search, trials, number, before)
        first = warm_start.tried_first(
            search, before, {entry.name: entry.parent for entry in record.inherited}
        )
        return first[number - 1] if number <= len(first) else suggest(search, trials, number)

    def _create(self, record: TuningRecord, search: Search, entry: TrialEntry) -> bool:
        """Creates a training job; returns whether it was created."""
        request = requests.of_trial(record.request, search.metric, entry.name, entry.tuned)
        try:
            self._service.create_training_job(request)
        except ApiError as error:
            # its data is gone, say, or the service has fewer workers than before: with this reason
            # no more are tried
            self._strike_out(
                record, {entry.name}, f"Trial {entry.number} could not be created: {error}"
            )
            return False
        self._changed()
        return True

    def _why(self, search: Search, trials: Sequence[SearchTrial], decision: SearchDecision) -> str:
        """Returns the reason of a failure.

        If trials have trained without the metric, it names the metrics that they have printed.
        """
        # they have trained, so the metric is misspelt or not printed
        silent = [
            trial.name
            for trial in trials
            if trial.status == "Completed" and trial.objective is None
        ]
        return decision.reason + (
            printed_metrics.sentence(self._service.home, search.metric, silent) if silent else ""
        )

    def _end(self, name: str, status: str, reason: str) -> None:
        now = time.time()

        def mark_ended(record: TuningRecord) -> TuningRecord | None:
            text = reason[:_LONGEST_REASON]
            after = dataclasses.replace(
                record, status=status, ended=now, modified=now, failure=text
            )
            return None if record.final else after

        self._service.tunings.change(name, mark_ended)
