"""The status of a TrainJob of Kubeflow Trainer: how far the training is, and its metrics.

Kubeflow Trainer 2.2 and later, with the feature gate TrainJobStatus, gives pods an address to
report to (pkg/runtime/framework/plugins/trainjobstatus of kubeflow/trainer); `kubectl get trainjob
NAME -o yaml` shows what came.
"""

from __future__ import annotations

import datetime
import json
import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos.errors import ConfigurationError
from syrtos.json_files import Tail
from syrtos.report.figures import FiguresPoint
from syrtos.report.ledger_lines import is_sound_point
from syrtos.report.trackers import About, Ended, Tracker
from syrtos.run_dir import RunDir
from syrtos.settings import KUBEFLOW_VARIABLES, environment

# The seconds that the controller wants between two reports (Trainer's user guide, "TrainJob
# Progress").
_EVERY = 5.0
_PATIENCE = 5.0  # seconds
# The limits of the object: metrics, and the letters of their names and values.
_MOST_METRICS, _MOST_LETTERS = 256, 64


class Kubeflow(Tracker):
    """The TrainJob in whose pod this process runs."""

    def __init__(self, about: About, place: str, known_as: str) -> None:
        env = environment()
        if place or not all(env.get(name) for name in KUBEFLOW_VARIABLES):
            raise ConfigurationError(
                "`--track kubeflow` reports to the TrainJob in whose pod it runs, which sets"
                f" {', '.join(KUBEFLOW_VARIABLES)}. Leave it out elsewhere: there it is on by"
                " itself."
            )
        self._url, self._authority, self._token = (env[name] for name in KUBEFLOW_VARIABLES)
        self._folder = about.folder
        self._tails: dict[Path, Tail] = {}
        self._epochs: list[Mapping[str, Any]] = []
        self._metrics: dict[str, float] = {}
        self._reported = 0.0

    def log(self, points: Sequence[FiguresPoint]) -> None:
        for point in points:
            self._metrics |= {
                name: value
                for name, value in point.values.items()
                if not name.startswith("system/")
            }
        if time.monotonic() > self._reported + _EVERY:
            self._reported = time.monotonic()
            try:
                self._report(self._progress())
            except OSError as error:
                # the controller may be away for a while: the next report has all that this one has
                print(f"syrtos: the TrainJob's status was not updated: {error}", flush=True)

    def end(self, how: Ended, report: Path | None) -> None:
        progress = self._progress()
        if how == "finished":
            progress |= {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
        self._report(progress)

    def _progress(self) -> dict[str, int]:
        """Returns the progress of the present `fit`, and the seconds that it will still take.

        The progress is in percent of its epochs. The seconds follow from its pace. Unknown values
        are left out.
        """
        for folder in RunDir(self._folder).generations():
            path = RunDir(folder).epochs
            self._epochs += self._tails.setdefault(path, Tail(path, is_sound_point)).read()
        last = self._epochs[-1] if self._epochs else {}
        epoch, epochs = last.get("epoch"), last.get("epochs")
        if not epoch or not epochs:
            return {}
        found = {"progressPercentage": min(int(100 * epoch / epochs), 100)}
        before = self._epochs[-2] if len(self._epochs) > 1 else {}
        if before.get("epoch") == epoch - 1:
            found["estimatedRemainingSeconds"] = max(
                int((last["time"] - before["time"]) * (epochs - epoch)), 0
            )
        return found

    def _report(self, progress: Mapping[str, int]) -> None:
        """Sends a report.

        Raises:
            OSError: it did not arrive.
        """
        named = [(name[:_MOST_LETTERS], f"{value:.6g}") for name, value in self._metrics.items()]
        status = {
            **progress,
            "metrics": [{"name": name, "value": value} for name, value in named[:_MOST_METRICS]],
            "lastUpdatedTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        # The token is another every hour.
        token = Path(self._token).read_text(encoding="utf-8").strip()
        asked = urllib.request.Request(
            self._url,
            json.dumps({"trainerStatus": status}).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        context = ssl.create_default_context(cafile=self._authority)
        urllib.request.urlopen(asked, timeout=_PATIENCE, context=context).close()
