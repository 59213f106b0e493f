"""Numbers in a job's output, and how far it is."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos.errors import ConfigurationError
from syrtos.observe.ledger import epochs_path


class Metrics:
    """The last value of each metric that a request defines by a regular expression with one group.

    Raises:
        ConfigurationError: an expression can't be read.
    """

    def __init__(self, definitions: Sequence[Mapping[str, str]]) -> None:
        self.values: dict[str, list[float]] = {}
        self._patterns = [(definition["Name"], _compiled(definition)) for definition in definitions]

    def take(self, lines: Sequence[str]) -> None:
        """Looks for metrics in lines of output."""
        for line in lines:
            for name, pattern in self._patterns:
                found = pattern.search(line)
                value = _number(found[1]) if found and pattern.groups else None
                if value is not None:
                    self.values[name] = [value, time.time()]


def _compiled(definition: Mapping[str, str]) -> re.Pattern[str]:
    try:
        return re.compile(definition["Regex"])
    except re.error as error:
        raise ConfigurationError(
            f"The metric {definition['Name']} has the regular expression {definition['Regex']!r}, which can't be read: {error}."
        ) from error


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None  # neither JSON nor the API has others


def epochs(run_dir: Path) -> list[dict[str, Any]]:
    """The records of rank 0 about each epoch, see `epochs_path`."""
    path = epochs_path(run_dir)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def progress(found: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The same as ``ProgressInfo`` of DescribeTrainingJob."""
    if not found:
        return {}
    last = found[-1]
    facts = {
        "TotalStepCountPerEpoch": last.get("steps_per_epoch"),
        "CurrentStep": last.get("step"),
        "CurrentEpoch": last.get("epoch"),
        "MaxEpoch": last.get("epochs"),
    }
    return {name: int(value) for name, value in facts.items() if value is not None}
