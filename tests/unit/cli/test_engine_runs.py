"""The words that an engine's launcher gets, and which engine that is."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from syrtos.cli import engine_runs
from syrtos.errors import ConfigurationError


@pytest.mark.parametrize(
    ("typed", "script", "kept"),
    [
        (
            "--on slurm -n 2 --with time=1 train.py --on x",
            "train.py --on x",
            "-n 2 train.py --on x",
        ),
        (
            "--on=slurm --with=time=1 --track mlflow -m package",
            "package",
            "--track mlflow -m package",
        ),
        ("--run-dir d --detach --gpus-per-worker 1 --dry-run train.py", "train.py", "train.py"),
    ],
)
def test_the_launcher_gets_all_but_what_chooses_the_engine(
    typed: str, script: str, kept: str
) -> None:
    assert " ".join(engine_runs.words_for_launcher(typed.split(), script.split())) == kept


def chosen(**given: Any) -> argparse.Namespace:
    none = {
        "on": None,
        "hosts": None,
        "hostfile": None,
        "discover": None,
        "engine_values": [],
        "gpus_per_worker": 0,
    }
    return argparse.Namespace(**{**none, **given})


def test_the_engine_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert engine_runs.engine_for(chosen()) is None
    found = engine_runs.engine_for(chosen(on="slurm"))
    assert found is not None
    assert found.name == "slurm"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    inside = engine_runs.engine_for(chosen())
    assert inside is not None
    assert inside.name == "slurm"
    assert engine_runs.engine_for(chosen(hosts="a:1")) is None
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert engine_runs.engine_for(chosen()) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"on": "slurm", "hosts": "a:1"}, "`--on slurm` chooses the hosts"),
        ({"engine_values": ["time=1"]}, "name it with --on"),
        ({"on": "nowhere"}, "there is no such engine. There are: "),
    ],
)
def test_options_that_contradict_each_other(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], says: str
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ConfigurationError, match=says):
        engine_runs.engine_for(chosen(**given))
