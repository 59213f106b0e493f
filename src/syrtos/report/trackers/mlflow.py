"""Logging to MLflow, through its client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlflow  # pyright: ignore[reportMissingImports]
from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

from syrtos import settings
from syrtos.report.figures import FiguresPoint
from syrtos.report.trackers import About, Ended, Tracker

# Of one request: https://mlflow.org/docs/latest/rest-api.html#log-batch.
_METRICS, _PARAMETERS, _LENGTH = 1000, 100, 6000


class MLflow(Tracker):
    """Logs to a tracking server or store: by default MLFLOW_TRACKING_URI.

    The experiment is named by MLFLOW_EXPERIMENT_NAME, or else by the script.
    """

    def __init__(self, about: About, place: str, known_as: str) -> None:
        if place:
            mlflow.set_tracking_uri(place)
        self._client: Any = mlflow.MlflowClient()
        self._run = known_as or self._begin(about)
        if known_as:
            self._client.update_run(self._run, "RUNNING")

    def _begin(self, about: About) -> str:
        name = settings.environment().get("MLFLOW_EXPERIMENT_NAME") or about.project
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run = self._client.create_run(
            number, run_name=about.name, tags={"syrtos.run_dir": str(about.folder)}
        ).info.run_id
        parameters = [Param(key, str(value)[:_LENGTH]) for key, value in about.parameters.items()]
        for part in _parts(parameters, _PARAMETERS):
            self._client.log_batch(run, params=part)
        return run

    @property
    def known_as(self) -> str:
        return self._run

    def log(self, points: Sequence[FiguresPoint]) -> None:
        metrics = [
            Metric(name, value, int(p.time * 1000), p.step)
            for p in points
            for name, value in p.values.items()
        ]
        for part in _parts(metrics, _METRICS):
            self._client.log_batch(self._run, metrics=part)

    def end(self, how: Ended, report: Path | None) -> None:
        if report:
            self._client.log_artifact(self._run, str(report))
        self._client.set_terminated(
            self._run, {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}[how]
        )


def _parts(values: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(values[k : k + size]) for k in range(0, len(values), size)]
