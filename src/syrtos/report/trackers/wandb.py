"""Logging to Weights & Biases, offline unless WANDB_MODE says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb  # pyright: ignore[reportMissingImports]

from syrtos import settings
from syrtos.report.figures import FiguresPoint
from syrtos.report.trackers import About, Ended, Tracker


class WandB(Tracker):
    """Logs to a project: by default the script's name.

    Offline runs lie in the run directory; `wandb sync` uploads them.
    """

    def __init__(self, about: About, place: str, known_as: str) -> None:
        self._run: Any = wandb.init(
            mode=settings.environment().get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            dir=str(about.folder),
            project=place or about.project,
            name=about.name,
            id=known_as or None,
            resume="allow" if known_as else None,
            config=dict(about.parameters),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="step")

    @property
    def known_as(self) -> str:
        return str(self._run.id)

    def log(self, points: Sequence[FiguresPoint]) -> None:
        for point in points:
            self._run.log({"step": point.step, **point.values})

    def end(self, how: Ended, report: Path | None) -> None:
        if report:
            self._run.log({"report": wandb.Html(report.read_text(), inject=False)})
        self._run.finish(exit_code=0 if how == "finished" else 1)
