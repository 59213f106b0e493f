"""`syrtos.ray.run`: what it refuses before it asks Ray for anything, and the reports to a session."""

from __future__ import annotations

import sys
import types
from typing import Any, cast

import pytest

import syrtos
from syrtos.errors import ConfigurationError
from syrtos_clusters.ray.calls import reporting


class Epochs:
    """Stands for places on which an epoch has ended before the first look, and one before the second."""

    def __init__(self) -> None:
        self.lines = ['{"epoch": 0, "logs": {"loss": 2.0}, "learning_rate": 0.5}']

    def epochs(self, run_dir: str) -> dict[str, list[str]]:
        found = {f"{run_dir}/ledger/epochs.jsonl": list(self.lines)}
        self.lines.append('{"epoch": 1, "logs": {"loss": 1.0}, "learning_rate": null}')
        return found


def session(active: bool, reported: list[dict[str, Any]]) -> Any:
    """A module that stands for `ray.tune`."""
    module: Any = types.ModuleType("ray.tune")
    module.get_context = lambda: types.SimpleNamespace(
        get_trial_id=lambda: "trial" if active else None
    )
    module.report = reported.append
    return module


def test_each_epoch_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "ray.tune", session(True, reported))
    places = Epochs()
    with reporting(cast(Any, places), "/run"):
        places.epochs("/run")
    assert reported[0] == {"loss": 2.0, "epoch": 0, "learning_rate": 0.5}
    assert reported[1] == {"loss": 1.0, "epoch": 1}


def test_without_a_session_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "ray.tune", session(False, reported))
    with reporting(cast(Any, Epochs()), "/run"):
        pass
    assert reported == []


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a function"):
        syrtos.ray.run(cast(Any, 3), workers=2)


def test_a_value_that_ray_has_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean `strategy`"):
        syrtos.ray.run(print, workers=2, values={"strategie": "PACK"})
