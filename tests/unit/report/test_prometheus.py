"""The dashboard asks for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from syrtos.report import prometheus
from syrtos_jobs.http import exposition

DOCS = Path(__file__).parents[3] / "docs"


def test_grafanas_panels_ask_for_metrics_that_there_are() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"syrtos_\w+", target["expr"])
    }
    source = Path(prometheus.__file__).read_text() + Path(exposition.__file__).read_text()
    there = set(re.findall(r'"(syrtos_\w+)"', source))
    assert {name.removesuffix("_total") for name in asked} <= there
    assert there <= {name.removesuffix("_total") for name in asked} | {
        "syrtos_epoch",
        "syrtos_training_steps",
    }
