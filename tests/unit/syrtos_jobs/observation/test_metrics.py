"""Numbers in what jobs print."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from syrtos.errors import ConfigurationError
from syrtos.run_dir import RunDir
from syrtos_jobs.observation import metrics
from syrtos_jobs.observation.metrics import Metrics

LOSS = {"Name": "loss", "Regex": r"loss: ([-+\w.]+)"}


def values(found: Metrics) -> dict[str, float]:
    return {name: value for name, (value, _) in found.values.items()}


def test_the_last_value_counts() -> None:
    found = Metrics([LOSS, {"Name": "acc:top-1", "Regex": r"acc=(\S+)"}])
    found.take(["loss: 1.5 acc=0.25", "nothing", "loss: 0.5 - loss: 0.1"])
    assert values(found) == {"loss": 0.5, "acc:top-1": 0.25}
    assert abs(found.values["loss"][1] - time.time()) < 5
    found.take(["loss: -3e-05"])
    assert values(found) == {"loss": -3e-05, "acc:top-1": 0.25}


@pytest.mark.parametrize("text", ["", "abc", "1.2.3", "--1", "1,5"])
def test_what_is_no_number_is_none(text: str) -> None:
    found = Metrics([{"Name": "loss", "Regex": "loss: (.*)"}])
    found.take([f"loss: {text}"])
    assert found.values == {}


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "NaN", "Infinity", "1e999"])
def test_what_json_can_not_say_is_no_value(text: str) -> None:
    """Describe is JSON, and so is what a database keeps."""
    found = Metrics([LOSS])
    found.take(["loss: 0.5", f"loss: {text}"])
    assert all(math.isfinite(value) for value in values(found).values())


def test_a_metric_that_ends_in_nan_has_no_value_until_it_is_finite_again() -> None:
    found = Metrics([LOSS])
    assert found.take(["loss: 0.001", "loss: nan", "loss: inf"]) == [("loss", 0.001)]
    assert (values(found), found.diverged) == ({}, {"loss"})
    found.take(["loss: 2"])
    assert (values(found), found.diverged) == ({"loss": 2.0}, set())


def test_groups_that_are_not_there_or_did_not_match() -> None:
    found = Metrics(
        [{"Name": "none", "Regex": r"loss: \d"}, {"Name": "other", "Regex": r"loss: \d|acc: (\d)"}]
    )
    found.take(["loss: 1"])
    assert found.values == {}
    found.take(["acc: 2"])
    assert values(found) == {"other": 2.0}


def test_expressions_that_can_not_be_read() -> None:
    with pytest.raises(ConfigurationError, match="The metric bad has the regular expression"):
        Metrics([{"Name": "bad", "Regex": "(unclosed"}])


def ledger(folder: Path, *lines: str) -> None:
    path = RunDir(folder).epochs
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


def test_epochs_are_of_rank_0(tmp_path: Path) -> None:
    assert metrics.epochs(tmp_path) == []
    one: dict[str, Any] = {
        "time": 1.0,
        "epoch": 1,
        "epochs": 3,
        "steps_per_epoch": 10,
        "step": 10,
        "logs": {},
    }
    two = {**one, "epoch": 2, "step": 20}
    odd = [json.dumps({**two, "epoch": "x"}), "{}}", "[1]", "[" * 99999 + "}", json.dumps(two)[:-5]]
    ledger(tmp_path, json.dumps(one), json.dumps(two), *odd)
    assert metrics.epochs(tmp_path) == [one, two]
    wanted = {"TotalStepCountPerEpoch": 10, "CurrentStep": 20, "CurrentEpoch": 2, "MaxEpoch": 3}
    assert metrics.progress(metrics.epochs(tmp_path)) == wanted


def test_progress_without_all_of_it() -> None:
    assert metrics.progress([]) == {}
    assert metrics.progress([{"epoch": 1, "epochs": None, "step": 3.0}]) == {
        "CurrentStep": 3,
        "CurrentEpoch": 1,
    }


def of_a_fit(*epochs: int, every: float = 10.0, total: int = 10) -> list[dict[str, Any]]:
    return [
        {"epoch": epoch, "epochs": total, "time": 100 + every * k} for k, epoch in enumerate(epochs)
    ]


def test_the_time_that_is_left() -> None:
    assert metrics.seconds_left([], 0.0, 100.0) is None
    assert metrics.seconds_left(of_a_fit(1), began=70.0, now=105.0) == 30 * 9 - 5
    assert metrics.seconds_left(of_a_fit(1, 2, 3), began=0.0, now=120.0) == 70
    assert (
        metrics.seconds_left(of_a_fit(1, 2, 3), began=0.0, now=500.0) == 60
    )  # an epoch that is slower than the others
    assert (
        metrics.seconds_left(of_a_fit(9, 10, 1, 2), began=0.0, now=130.0) == 80
    )  # of the second `fit`
    assert metrics.seconds_left(of_a_fit(9, 10), began=0.0, now=110.0) is None
    assert metrics.seconds_left([{"epoch": 1, "epochs": None, "time": 1.0}], 0.0, 2.0) is None
    slow = [{"epoch": k, "epochs": 40, "time": 1000.0 * k} for k in range(1, 11)]
    fast = [{"epoch": k, "epochs": 40, "time": 10_000.0 + k} for k in range(11, 31)]
    assert metrics.seconds_left([*slow, *fast], 0.0, 10_030.0) == 10


def test_the_value_that_says_most() -> None:
    logs = [{"logs": {"loss": 3.0}}, {"logs": {"accuracy": 0.5, "loss": 2.0}}]
    assert metrics.headline(logs, {"loss": [9.0, 0.0]}) == ("loss", 2.0)
    assert metrics.headline([{"logs": {"accuracy": 0.5, "mae": 1.0}}], {}) == ("accuracy", 0.5)
    assert metrics.headline([], {"train:x": [1.0, 0.0], "loss": [2.0, 0.0]}) == ("loss", 2.0)
    assert metrics.headline([{"logs": {}}], {"train:x": [1.0, 0.0]}) == ("train:x", 1.0)
    assert metrics.headline([], {}) is None


def test_an_expression_of_exponential_time_is_given_up_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "_LONGEST_SEARCH", 0.05)
    found = Metrics([{"Name": "slow", "Regex": r"((?:a|aa)+)$"}, LOSS])
    found.take(["loss: 1 " + "a" * 60 + "b"] * 5)
    assert values(found) == {"loss": 1.0}
    (said,) = found.new_complaints()
    assert "the metric slow is not looked for any more" in said
    assert found.new_complaints() == []


def test_many_slow_expressions_take_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_BUDGET", 0.3)
    slow = [{"Name": f"slow {k}", "Regex": rf"((?:a|aa)+){k}$"} for k in range(20)]
    found, began = Metrics([*slow, LOSS]), time.process_time()
    found.take(["loss: 1 " + "a" * 60 + "b"] * 5)
    assert time.process_time() - began < 5.0
    assert values(found) == {"loss": 1.0}
    said = found.new_complaints()
    assert len(said) == 20
    assert "all of them together" in said[-1]
