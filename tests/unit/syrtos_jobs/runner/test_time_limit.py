"""The seconds that a job may run do not depend on a clock that somebody sets."""

from __future__ import annotations

import time

import pytest

from syrtos_jobs.requests.states import Transition
from syrtos_jobs.runner.time_limit import TimeLimit

DAY = 86400.0


def training(since: float, *before: Transition) -> list[Transition]:
    return [*before, {"Status": "Training", "StartTime": since, "StatusMessage": ""}]


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What has passed by the monotonic clock, and by how much the other was set."""
    passed = {"seconds": 0.0, "set": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: passed["seconds"])
    monkeypatch.setattr(time, "time", lambda: 1.8e9 + passed["seconds"] + passed["set"])
    return passed


@pytest.mark.parametrize("step", [0.0, DAY, -DAY])
def test_a_job_ends_after_the_seconds_that_it_may_run(
    passing: dict[str, float], step: float
) -> None:
    limits, transitions = TimeLimit(600.0, None), training(time.time())
    assert limits.exceeded(transitions) == ""
    passing.update(seconds=599.0, set=step)
    assert limits.exceeded(transitions) == ""
    passing["seconds"] = 601.0
    assert limits.exceeded(transitions) == "MaxRuntimeExceeded"


@pytest.mark.parametrize("step", [0.0, DAY, -DAY])
def test_what_earlier_attempts_have_run_counts(passing: dict[str, float], step: float) -> None:
    earlier: Transition = {
        "Status": "Training",
        "StartTime": 1.7e9,
        "EndTime": 1.7e9 + 500,
        "StatusMessage": "",
    }
    passing["set"] = step
    limits, transitions = TimeLimit(600.0, None), training(time.time(), earlier)
    assert limits.exceeded(transitions) == ""
    passing.update(seconds=101.0, set=0.0)
    assert limits.exceeded(transitions) == "MaxRuntimeExceeded"


@pytest.mark.parametrize("step", [0.0, DAY, -DAY])
def test_a_spot_job_ends_after_the_seconds_that_it_may_wait_and_run(
    passing: dict[str, float], step: float
) -> None:
    limits = TimeLimit(DAY * 9, time.time() + 100.0)
    passing.update(seconds=99.0, set=step)
    assert limits.exceeded(training(1.8e9)) == ""
    passing["seconds"] = 101.0
    assert limits.exceeded(training(1.8e9)) == "MaxWaitTimeExceeded"
