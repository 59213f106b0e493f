"""Short tuning jobs, for a service of `served_jobs`: their trials are scripts of the shell."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path
from typing import Any

from served_jobs import request as job

RANGES = {
    "ContinuousParameterRanges": [
        {"Name": "x", "MinValue": "0", "MaxValue": "1", "ScalingType": "Linear"}
    ],
    "CategoricalParameterRanges": [{"Name": "kind", "Values": ["one", "two"]}],
}
_READ = "kind=$2; x=$4\n"  # of `--kind one --x 0.5`


def request(
    folder: Path,
    name: str,
    script: str,
    *,
    trials: int | None = 3,
    parallel: int = 1,
    limits: dict[str, int] | None = None,
    **config: Any,
) -> dict[str, Any]:
    """A tuning job whose trials run ``script``, which knows its hyperparameters as $kind and $x."""
    of_job = job("unnamed", "true")
    definition = {
        key: of_job[key]
        for key in ("RoleArn", "OutputDataConfig", "ResourceConfig", "StoppingCondition")
    }
    definition["AlgorithmSpecification"] = {"TrainingImage": "none", "TrainingInputMode": "File"}
    source = _packed(folder / f"{name}.tar.gz", _READ + script)
    definition["StaticHyperParameters"] = {
        "sagemaker_program": "trial.sh",
        "sagemaker_submit_directory": source,
    }
    most = {"MaxNumberOfTrainingJobs": trials} if trials else {}
    return {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": {
            "Strategy": "Random",
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ResourceLimits": {"MaxParallelTrainingJobs": parallel, **most, **(limits or {})},
            "ParameterRanges": RANGES,
            "RandomSeed": 7,
            **config,
        },
        "TrainingJobDefinition": definition,
    }


def _packed(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("trial.sh")
        member.size = len(script.encode())
        tar.addfile(member, io.BytesIO(script.encode()))
    return path.as_uri()


def described(sagemaker: Any, name: str) -> dict[str, Any]:
    """What Describe says."""
    return sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)


def final(sagemaker: Any, name: str, seconds: float = 120) -> dict[str, Any]:
    """What Describe says once the tuning job has ended."""
    return until(
        sagemaker,
        name,
        lambda found: found["HyperParameterTuningJobStatus"] in ("Completed", "Failed", "Stopped"),
        seconds,
    )


def until(sagemaker: Any, name: str, wanted: Any, seconds: float = 120) -> dict[str, Any]:
    """What Describe says once ``wanted`` is true of it."""
    deadline = time.monotonic() + seconds
    while not wanted(found := described(sagemaker, name)):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def trials(sagemaker: Any, name: str) -> list[dict[str, Any]]:
    """The training jobs of a tuning job, in the order of their numbers."""
    return sagemaker.list_training_jobs_for_hyper_parameter_tuning_job(
        HyperParameterTuningJobName=name, MaxResults=100
    )["TrainingJobSummaries"]
