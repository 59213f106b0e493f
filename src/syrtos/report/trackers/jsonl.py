"""A file of JSON lines: the first has the parameters, each later one the numbers of one moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos.report.figures import FiguresPoint
from syrtos.report.trackers import About, Ended, Tracker


class JSONL(Tracker):
    """Logs to a file: by default `metrics.jsonl` in the run directory."""

    def __init__(self, about: About, place: str, known_as: str) -> None:
        self._path = Path(place) if place else about.folder / "metrics.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not known_as:
            self._append({"run": about.name, "parameters": dict(about.parameters)})

    @property
    def known_as(self) -> str:
        return str(self._path)

    def log(self, points: Sequence[FiguresPoint]) -> None:
        for point in points:
            self._append({"time": point.time, "step": point.step, **point.values})

    def end(self, how: Ended, report: Path | None) -> None:
        self._append({"ended": how, "report": str(report) if report else None})

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
