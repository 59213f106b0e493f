"""Tuning jobs on the page: a list of the newest, and the facts about one."""

from __future__ import annotations

from syrtos_jobs.api.service import Service
from syrtos_jobs.requests.secrecy import redact
from syrtos_jobs.store.tunings import TuningRecord, columns
from syrtos_jobs.tuning.operations import describe_tuning_job, search_of, summary
from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.trial_rows import trials_of
from syrtos_jobs.tuning.trials import best, status_counters

_MOST = 50  # tuning jobs of the list


class Searches:
    """Answers about tuning jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ended: dict[tuple[str, float | None], dict[str, object]] = {}

    def rows(self) -> list[dict[str, object]]:
        """Returns the rows of the newest tuning jobs."""
        found, _ = self._service.tunings.find(
            [], [columns.created.desc(), columns.name.desc()], 0, _MOST
        )
        return [self._row(record) for record in found]

    def answer(self, record: TuningRecord) -> dict[str, object]:
        """Returns a tuning job as Describe gives it, with its trials."""
        search = search_of(record)
        trials = trials_of(self._service.store, search, record)
        return {
            "search": describe_tuning_job(record, search, trials),
            "trials": [{**summary(search, trial), "number": trial.number} for trial in trials],
            "parameters": [_parameter(search, k) for k in range(len(search.space))],
            "metric": search.metric,
            "maximize": search.maximize,
            "most": search.trials,
            "parallel": search.parallel,
            "static": _static(record),
        }

    def _row(self, record: TuningRecord) -> dict[str, object]:
        """Returns a tuning job's row."""
        # made only once after its end; the time tells one that was continued from what it was
        # before
        key = (record.name, record.ended)
        if key in self._ended:
            return self._ended[key]
        search = search_of(record)
        trials = trials_of(self._service.store, search, record)
        found = best(search, trials)
        row: dict[str, object] = {
            "name": record.name,
            "status": record.status,
            "strategy": search.strategy,
            "created": record.created,
            "ended": record.ended,
            "counters": status_counters(trials),
            "most": search.trials,
            "best": [search.metric, found.objective] if found else None,
            "failure": record.failure,
        }
        if record.final:
            self._ended[key] = row
        return row


def _parameter(search: Search, k: int) -> dict[str, object]:
    parameter = search.space[k]
    facts: dict[str, object] = {
        "name": parameter.name,
        "kind": parameter.kind,
        "scale": parameter.scale,
    }
    return facts | (
        {"values": list(parameter.values)}
        if parameter.values
        else {"low": parameter.low, "high": parameter.high}
    )


def _static(record: TuningRecord) -> dict[str, str]:
    definition = redact(record.request["TrainingJobDefinition"])
    return dict(definition.get("StaticHyperParameters") or {})
