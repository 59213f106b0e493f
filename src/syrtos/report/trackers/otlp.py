"""Logging to OpenTelemetry by OTLP over HTTP: gauges `syrtos.NAME` with the run as an attribute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # pyright: ignore[reportMissingImports]
    OTLPMetricExporter,
)
from opentelemetry.sdk.metrics import MeterProvider  # pyright: ignore[reportMissingImports]
from opentelemetry.sdk.metrics.export import (  # pyright: ignore[reportMissingImports]
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource  # pyright: ignore[reportMissingImports]

from syrtos.report.figures import FiguresPoint
from syrtos.report.trackers import About, Ended, Tracker

_EVERY = 5000  # ms


class _Exporter(OTLPMetricExporter):
    """An exporter that remembers whether the last export arrived."""

    arrived = True

    def export(self, *args: Any, **kwargs: Any) -> Any:
        result = super().export(*args, **kwargs)
        # The SDK only logs that something did not arrive.
        self.arrived = result is MetricExportResult.SUCCESS
        return result


class OTLP(Tracker):
    """Logs to a collector: by default OTEL_EXPORTER_OTLP_ENDPOINT.

    Another place is an address like http://127.0.0.1:4318/v1/metrics.
    """

    def __init__(self, about: About, place: str, known_as: str) -> None:
        del known_as  # a collector knows no runs
        self._exporter = _Exporter(endpoint=place or None)
        reader = PeriodicExportingMetricReader(self._exporter, export_interval_millis=_EVERY)
        attributes = {"service.name": "syrtos", "syrtos.project": about.project}
        self._provider: Any = MeterProvider([reader], Resource.create(attributes))
        self._meter: Any = self._provider.get_meter("syrtos")
        self._gauges: dict[str, Any] = {}
        self._attributes = {"run": about.name}

    def log(self, points: Sequence[FiguresPoint]) -> None:
        for point in points:
            self._set("training.steps", point.step)
            for name, value in point.values.items():
                self._set(name, value)

    def _set(self, name: str, value: float) -> None:
        if name not in self._gauges:
            self._gauges[name] = self._meter.create_gauge(
                "syrtos." + re.sub(r"[^A-Za-z0-9_./-]", "_", name)
            )
        self._gauges[name].set(value, self._attributes)

    def end(self, how: Ended, report: Path | None) -> None:
        self._set("succeeded", float(how == "finished"))
        self._provider.force_flush()
        arrived = self._exporter.arrived
        self._provider.shutdown()
        if not arrived:
            raise ConnectionError("the collector did not take the last metrics")
