"""Tuning jobs, driven by SDK v2's and SDK v3's tuners and by boto3, as their users call them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sdks import SOURCE, Service, needs

pytestmark = pytest.mark.slow


def check_best(found: dict[str, Any], count: int) -> None:
    """The best job is the best of the table, and has its values."""
    description, job = found["description"], found["job"]
    assert description["HyperParameterTuningJobStatus"] == "Completed"
    assert (
        description["TrainingJobStatusCounters"]["Completed"]
        == description["ObjectiveStatusCounters"]["Succeeded"]
        == count
    )
    best = description["BestTrainingJob"]
    assert found["best"] == best["TrainingJobName"] == job["TrainingJobName"]
    value = best["FinalHyperParameterTuningJobObjectiveMetric"]["Value"]
    assert value == max(found["values"])
    tuned = best["TunedHyperParameters"]
    assert value == pytest.approx(1 - abs(float(tuned["rate"]) - 0.3), abs=1e-5)
    assert tuned.items() <= job["HyperParameters"].items()
    assert job["HyperParameters"]["_tuning_objective_metric"] == "val_accuracy"
    assert job["TuningJobArn"] == description["HyperParameterTuningJobArn"]


@needs("v2")
@pytest.mark.long
def test_sdk_v2(service: Service) -> None:
    ran = service.run("v2", "v2_tune.py", source=str(SOURCE), strategy="Bayesian", estimator=True)
    found = ran.answer
    check_best(found, 4)
    assert found["attached"] == found["best"]
    assert found["attached_ranges"] == [
        "CategoricalParameterRanges",
        "ContinuousParameterRanges",
        "IntegerParameterRanges",
    ]
    assert found["model"] == found["job"]["ModelArtifacts"]["S3ModelArtifacts"]
    frame = found["frame"]
    assert {"rate", "layers", "activation", "TrainingJobName", "TrainingElapsedTimeSeconds"} <= {
        *frame
    }
    assert frame["TrainingJobStatus"] == ["Completed"] * 4
    assert [name.rsplit("-", 2)[1] for name in frame["TrainingJobName"]] == [
        "001",
        "002",
        "003",
        "004",
    ]
    assert {json.loads(value) for value in frame["activation"]} <= {"relu", "tanh"}
    warm = found["warm"]
    assert warm["WarmStartConfig"] == found["warm_attached"]
    assert warm["WarmStartConfig"]["ParentHyperParameterTuningJobs"] == [
        {"HyperParameterTuningJobName": found["name"]}
    ]
    overall, own = warm["OverallBestTrainingJob"], warm["BestTrainingJob"]
    values = [one["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] for one in (overall, own)]
    assert values[0] == max(values[1], *found["values"])
    stopped = found["stopped"]
    assert stopped["HyperParameterTuningJobStatus"] == "Stopped"
    assert stopped["TrainingJobStatusCounters"]["InProgress"] == 0


@needs("v3")
def test_sdk_v3(service: Service) -> None:
    found = service.run("v3", "v3_tune.py", source=str(SOURCE)).answer
    check_best(found, 3)
    assert len(found["names"]) == 3
    assert found["stopped"] == "Stopped"


@needs("v2")
def test_boto3(service: Service) -> None:
    found = service.run("v2", "boto_tune.py", source=str(SOURCE)).answer
    trials = found["trials"]
    check_best({**found, "best": trials[0]["TrainingJobName"], "values": [1.0]}, 3)
    assert [trial["TunedHyperParameters"]["rate"] for trial in trials] == ["0.3", "0.2", "0.1"]
    assert found["tags"] == found["of_job"] == [{"Key": "team", "Value": "digits"}]
    assert "grid" in found["listed"]
