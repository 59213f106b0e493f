"""Experiment trackers, to which a run is logged while it goes on, from a process of its own.

`make` returns a tracker by its name.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from syrtos.errors import ConfigurationError
from syrtos.report.figures import FiguresPoint

Ended = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True)
class About:
    """A run, as a tracker describes it.

    Attributes:
        name: the name of the run.
        project: the name that runs of the same script share: the script's.
        folder: the run directory.
        parameters: options, arguments and versions, without secrets.
    """

    name: str
    project: str
    folder: Path
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Tracker(ABC):
    """A place that runs are logged to."""

    @abstractmethod
    def __init__(self, about: About, place: str, known_as: str) -> None:
        """Begins to log a run, or goes on.

        Args:
            about: the run.
            place: the text after the colon of `--track NAME:PLACE`; empty for the tracker's own
                default.
            known_as: the value of `known_as` when the same run was tracked before; empty at first.
        """

    @property
    def known_as(self) -> str:
        """The name that the tracker has for the run, so that it can go on later."""
        return ""

    @abstractmethod
    def log(self, points: Sequence[FiguresPoint]) -> None:
        """Writes down points, which are in order of time."""

    @abstractmethod
    def end(self, how: Ended, report: Path | None) -> None:
        """Notes that the run has ended, and its report, a file, if there is one."""


# By name: the file here and its class, the module that it needs, and what to install.
_TRACKERS = {
    "tensorboard": ("tensorboard:TensorBoard", "tensorboard", "tensorboard"),
    "mlflow": ("mlflow:MLflow", "mlflow", "mlflow"),
    "wandb": ("wandb:WandB", "wandb", "wandb"),
    "jsonl": ("jsonl:JSONL", "json", ""),
    "otlp": (
        "otlp:OTLP",
        "opentelemetry",
        "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
    ),
    "kubeflow": ("kubeflow:Kubeflow", "ssl", ""),
}


def check(words: Sequence[str]) -> None:
    """Checks that words name trackers that can be used.

    Raises:
        ConfigurationError: a word is no tracker, holds a password, or needs a package that is not
            installed.
    """
    for word in words:
        name, _, place = word.partition(":")
        if name not in _TRACKERS:
            raise ConfigurationError(
                f"`--track` takes {', '.join(_TRACKERS)}, each as NAME or NAME:PLACE. Received:"
                f" {word!r}."
            )
        if re.search(r"//.*@|[?&]", place):
            raise ConfigurationError(
                f"`--track {name}:...` holds a user's name, a password or a query, which would be"
                " written into the run directory. Leave it out of the address, and set the"
                " tracker's own variables (MLFLOW_TRACKING_USERNAME, WANDB_API_KEY,"
                " OTEL_EXPORTER_OTLP_HEADERS)."
            )
        _, module, package = _TRACKERS[name]
        if importlib.util.find_spec(module) is None:
            raise ConfigurationError(
                f"`--track {name}` needs a package that is not installed: `pip install {package}`."
            )


def make(word: str, about: About, known_as: str = "") -> Tracker:
    """Returns the tracker that a word of `--track` names."""
    name, _, place = word.partition(":")
    module, _, kind = _TRACKERS[name][0].partition(":")
    return getattr(importlib.import_module(f"syrtos.report.trackers.{module}"), kind)(
        about, place, known_as
    )
