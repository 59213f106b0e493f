"""Trainings that are slow in one way each, and what `syrtos report` recommends for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import netns
import pytest

import forking
from syrtos.report import advice, promises, situation
from syrtos.report.read import load

SYRTOS = Path(sys.executable).with_name("syrtos")
SCRIPT = Path(__file__).parent / "scripts" / "costly.py"
ENV = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "KERAS_BACKEND": "tensorflow",
}
# By the way in which a training is slow: the rule that finds it, words of the recommendation, and the least and greatest gain.
WAYS = {
    "input": ("slow input", "Let each worker read its own records", 1.2, 1.8),
    "one reader": ("slow reader", "Look at what rank 1 reads from", 1.5, 9.0),
    "one worker": ("slow worker", "what else computes on the cores of rank 1", 1.5, 9.0),
    "tiny batches": ("tiny batches", "Use `-n 1`", 1.05, 3.0),
    "checkpoints": ("frequent checkpoints", "Save a fifth as often", 1.1, 5.0),
    "retracing": ("retracing", "`step` has 150 of them", 1.2, 9.0),
    "skewed": (
        "skewed shards",
        "rank 0 trains 2,048 samples in a step and the others 512",
        1.1,
        1.9,
    ),
}
pytestmark = [pytest.mark.slow, pytest.mark.timing]


def train(run_dir: Path, way: str, backend: str = "tensorflow") -> Any:
    """The findings about a run that is slow in this way."""
    flags = ["--batch", "per-worker"] if way == "skewed" else []
    command = forking.syrtos_run(
        run_dir, 2, SCRIPT, way, run_dir.parent / "saved.keras", flags=flags
    )
    done = forking.run(command, {**ENV, "KERAS_BACKEND": backend})
    assert done.returncode == 0, done.stdout + done.stderr
    return findings(run_dir)


def findings(run_dir: Path) -> list[advice.Recommendation]:
    found = situation.of(load(run_dir))
    assert found is not None
    return advice.findings(found)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_a_training_that_is_slow_in_one_way(tmp_path: Path, way: str) -> None:
    rule, words, least, most = WAYS[way]
    found = train(tmp_path / "run", way)
    assert found[0].rule == rule, list(map(str, found))
    assert words in str(found[0])
    assert least <= found[0].gain <= most, str(found[0])


@pytest.mark.timeout(300)
def test_a_training_that_updates_most_of_its_time(tmp_path: Path) -> None:
    """On torch, whose updates are not compiled."""
    found = train(tmp_path / "run", "update", "torch")
    assert found[0].rule == "update-bound", list(map(str, found))
    assert "`--shard-update`" in str(found[0])


@pytest.mark.timeout(300)
def test_a_training_that_computes_most_of_its_time(tmp_path: Path) -> None:
    found = train(tmp_path / "run", "nothing")
    assert not [finding for finding in found if finding.gain > 1.25], list(map(str, found))


@pytest.mark.timeout(300)
def test_the_next_run_says_whether_it_came_true(tmp_path: Path) -> None:
    found = train(tmp_path / "before", "callback")
    assert found[0].rule == "slow callback", list(map(str, found))
    assert "`Blocking`" in str(found[0])
    assert 1.5 <= found[0].gain <= 9.0, str(found[0])
    expected = promises.keep(load(tmp_path / "before"))["recommended"]["gain"]
    train(tmp_path / "after", "no callback")
    kept = promises.keep(load(tmp_path / "after"))["before"]
    assert kept["run"] == "before"
    assert kept["expected"] == expected
    assert kept["came"] > 1.3
    assert "Since then its arguments changed" in kept["text"]
    again = promises.keep(load(tmp_path / "after"))  # of the run itself nothing is said
    assert again["before"]["run"] == "before"


@pytest.mark.root
@pytest.mark.timeout(400)
def test_hosts_that_wait_for_their_network(tmp_path: Path) -> None:
    with netns.two_hosts_or_skip("1gbit") as hosts:
        command = [
            str(SYRTOS),
            "run",
            *hosts.flags(1),
            "--run-dir",
            str(tmp_path / "run"),
            str(SCRIPT),
            "network",
        ]
        done = hosts.run(command, env=ENV)
    assert done.returncode == 0, done.stdout + done.stderr
    found = findings(tmp_path / "run")
    assert found[0].rule == "exchange-bound", list(map(str, found))
    assert json.dumps(found[0].facts())
