"""SageMaker's SDK v2 (sagemaker 2.257): estimators of TensorFlow, trained by syrtos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sdks import (
    HYPERPARAMETERS,
    SOURCE,
    Ran,
    Service,
    needs,
    same_weights,
    started_plainly,
    steps,
    unpacked,
)

pytestmark = [needs("v2"), pytest.mark.slow]

METRICS = [
    {"Name": "train:loss", "Regex": r"loss: ([0-9.]+)"},
    {"Name": "train:accuracy", "Regex": r"accuracy: ([0-9.]+)"},
    {"Name": "never", "Regex": r"this is not printed: ([0-9.]+)"},
]
_WHOLE_LIFE = ["Starting", "Downloading", "Training", "Uploading", "Completed"]


def fit(service: Service, folder: Path, script: str, fails: bool = False, **facts: Any) -> Ran:
    """Trains with an estimator of SDK v2."""
    ran = service.run(
        "v2", "v2_fit.py", script=script, source=str(SOURCE), folder=str(folder), **facts
    )
    assert bool(ran.answer["error"]) == fails, ran.answer["error"]
    return ran


@pytest.mark.long
def test_two_instances_train_as_one_world(
    service: Service, digits: Path, plain_model: Path, tmp_path: Path
) -> None:
    arguments = {
        "instance_count": 2,
        "hyperparameters": HYPERPARAMETERS,
        "metric_definitions": METRICS,
        "environment": {"GREETING": "good day"},
        "tags": [{"Key": "team", "Value": "digits"}],
    }
    ran = fit(service, tmp_path, "digits.py", data=str(digits), arguments=arguments, logs=True)
    description = ran.answer["description"]

    # the SDK shows both instances' logs, and how long they have trained
    assert "algo-1 has trained" in ran.output
    assert "algo-2 has trained" in ran.output
    assert "Epoch 3/3" in ran.output
    assert "Training seconds:" in ran.output

    (archive,) = ran.answer["fetched"]
    assert ran.answer["model_data"] == description["ModelArtifacts"]["S3ModelArtifacts"]
    model = unpacked(archive, tmp_path / "model")
    same_weights(model / "digits.keras", plain_model)

    assert steps(description) == _WHOLE_LIFE
    assert description["TrainingJobStatus"] == "Completed"
    assert description["TrainingStartTime"] <= description["TrainingEndTime"]
    assert 0 < description["BillableTimeInSeconds"] <= 900
    history = json.loads((model / "history.json").read_text())
    metrics = {
        metric["MetricName"]: metric["Value"] for metric in description["FinalMetricDataList"]
    }
    assert metrics == {
        "train:loss": pytest.approx(history["loss"][-1], abs=1e-3),
        "train:accuracy": pytest.approx(history["accuracy"][-1], abs=1e-3),
    }
    measured = ran.answer["measured"]  # averages of minutes
    assert {*measured["metric_name"]} == {"train:loss", "train:accuracy"}
    for name, value in zip(measured["metric_name"], measured["value"], strict=True):
        values = history[name.removeprefix("train:")]
        assert min(values) - 1e-3 <= value <= max(values) + 1e-3
    progress = description["ProgressInfo"]
    assert (progress["CurrentEpoch"], progress["MaxEpoch"]) == (3, 3)
    assert (
        progress["TotalStepCountPerEpoch"] == 29
    )  # 1797 images in batches of 64, over both instances


@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=pytest.mark.long) for name in ("jax", "torch")]
)
def test_other_backends(service: Service, digits: Path, tmp_path: Path, backend: str) -> None:
    variables = {"KERAS_BACKEND": backend}
    plain = started_plainly(digits, tmp_path, variables)
    arguments = {"instance_count": 2, "hyperparameters": HYPERPARAMETERS, "environment": variables}
    ran = fit(service, tmp_path, "digits.py", data=str(digits), arguments=arguments)
    same_weights(
        unpacked(ran.answer["fetched"][0], tmp_path / "job") / "digits.keras",
        plain / "digits.keras",
    )


def test_horovod_over_mpi(service: Service, digits: Path, tmp_path: Path) -> None:
    mpi = {
        "enabled": True,
        "processes_per_host": 1,
        "custom_mpi_options": "--NCCL-tuning x -x NCCL_DEBUG=WARN",
    }
    arguments = {"instance_count": 2, "distribution": {"mpi": mpi}}
    ran = fit(service, tmp_path, "horovod_digits.py", data=str(digits), arguments=arguments)
    found = sorted(line for _, line in ran.answer["lines"] if line.startswith("rank "))
    assert [line.split(": ")[0] for line in found] == [
        "rank 0 of 2, 0 of 1 on algo-1",
        "rank 1 of 2, 0 of 1 on algo-2",
    ]
    assert len({line.split(": ")[1] for line in found}) == 1, "the workers' weights differ"
    assert found[0].endswith("; WARN")
    assert (unpacked(ran.answer["fetched"][0], tmp_path / "model") / "digits.keras").is_file()


@pytest.mark.long
def test_multi_worker_mirrored_strategy(service: Service, digits: Path, tmp_path: Path) -> None:
    arguments = {
        "instance_count": 2,
        "distribution": {"multi_worker_mirrored_strategy": {"enabled": True}},
    }
    ran = fit(service, tmp_path, "mirrored_digits.py", data=str(digits), arguments=arguments)
    found = sorted((host, line) for host, line in ran.answer["lines"] if line.startswith("worker "))
    assert [(host, line.split(": ")[0]) for host, line in found] == [
        ("algo-1", "worker 0 of 2 on algo-1"),
        ("algo-2", "worker 1 of 2 on algo-2"),
    ]
    assert len({line.split(": ")[1] for _, line in found}) == 1, "the workers' weights differ"
    assert (unpacked(ran.answer["fetched"][0], tmp_path / "model") / "digits.keras").is_file()


@pytest.mark.long  # as with v3
def test_a_mistake_of_the_script_is_the_sdks_error(service: Service, tmp_path: Path) -> None:
    ran = fit(service, tmp_path, "failing.py", fails=True, arguments={"instance_count": 2})
    assert "there is no digit 'ten'" in ran.answer["error"]
    description = ran.answer["description"]
    assert description["FailureReason"].startswith(
        "AlgorithmError: ExecuteUserScriptError:\nExitCode 1\n"
    )
    assert "ValueError: there is no digit 'ten'" in description["FailureReason"]
    assert steps(description)[-1] == description["TrainingJobStatus"] == "Failed"
    lines = [tuple(line) for line in ran.answer["lines"]]
    # one may fail before the other begins
    assert any((host, f"{host} begins") in lines for host in ("algo-1", "algo-2"))


def test_a_stopped_job_saves_what_it_has(service: Service, tmp_path: Path) -> None:
    ran = fit(service, tmp_path, "stopped.py", arguments={"instance_count": 2}, stop=True)
    description = ran.answer["description"]
    assert description["TrainingJobStatus"] == "Stopped"
    assert steps(description)[-3:] == ["Stopping", "Uploading", "Stopped"]
    saved = unpacked(ran.answer["fetched"][0], tmp_path / "model")
    assert {path.name: path.read_text() for path in saved.iterdir()} == {
        "algo-1.txt": "saved by algo-1",
        "algo-2.txt": "saved by algo-2",
    }
