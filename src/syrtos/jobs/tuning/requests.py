"""The training jobs of a tuning job: CreateTrainingJob's parameters, from its definition and the values that were chosen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from syrtos.jobs.home import ACCOUNT, REGION

# What a TrainingJobDefinition and a training job have under the same name.
SAME = (
    "RoleArn", "InputDataConfig", "VpcConfig", "OutputDataConfig", "ResourceConfig", "StoppingCondition", "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining", "RetryStrategy", "Environment",
)  # fmt: skip
# NaN and infinity among them; it ends where the number does: neither a version (1.2.3) nor a time (12:30) nor a date begins with one.
NUMBER = r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[nN][aA][nN]|[iI][nN][fF](?:inity|INITY)?)(?!\w|[.,:/-][0-9])"
OBJECTIVE = "_tuning_objective_metric"  # the hyperparameter that names the metric


def arn(name: str) -> str:
    """A tuning job's name for all of AWS."""
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:hyper-parameter-tuning-job/{name}"


def definition_of(request: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """The definition as it is described: the name of the objective is among its hyperparameters, how it is found among the metrics (SDK v2's `attach` looks
    for them), and its instances are in a ``ResourceConfig``, where SDK v2, which sends them as a ``HyperParameterTuningResourceConfig``, looks for them."""
    definition = request["TrainingJobDefinition"]
    static = {**(definition.get("StaticHyperParameters") or {}), OBJECTIVE: metric}
    instances = definition.get("HyperParameterTuningResourceConfig")
    resources = {"ResourceConfig": _resources(instances)} if instances else {}
    algorithm = _algorithm(definition["AlgorithmSpecification"], metric)
    return {**resources, **definition, "StaticHyperParameters": static, "AlgorithmSpecification": algorithm}


def of_trial(request: Mapping[str, Any], metric: str, name: str, tuned: Mapping[str, str]) -> dict[str, Any]:
    """The request for one training job.

    Args:
        request: of the tuning job.
        metric: its objective.
        tuned: the values of its hyperparameters that were chosen.
    """
    definition = definition_of(request, metric)
    found = {key: definition[key] for key in SAME if key in definition}
    found |= {
        "TrainingJobName": name,
        "TuningJobArn": arn(request["HyperParameterTuningJobName"]),
        "HyperParameters": {**definition["StaticHyperParameters"], **tuned},
        "AlgorithmSpecification": definition["AlgorithmSpecification"],
    }
    if "CheckpointConfig" in definition:  # each training job has checkpoints of its own
        checkpoints = definition["CheckpointConfig"]
        found["CheckpointConfig"] = {**checkpoints, "S3Uri": f"{checkpoints['S3Uri'].rstrip('/')}/{name}"}
    return found | ({"Tags": request["Tags"]} if request.get("Tags") else {})


def default_regex(metric: str) -> str:
    """Finds a metric where Keras prints it (``val_accuracy: 0.97``), and where a script prints ``val_accuracy=0.97``; the last one of a line."""
    return rf".*(?<![\w-]){re.escape(metric)}\s*[:=]\s*({NUMBER})"


def _algorithm(given: Mapping[str, Any], metric: str) -> dict[str, Any]:
    definitions: list[dict[str, str]] = list(given.get("MetricDefinitions") or ())
    if metric not in [definition["Name"] for definition in definitions]:
        definitions.append({"Name": metric, "Regex": default_regex(metric)})
    return {**given, "MetricDefinitions": definitions}


def _resources(given: Mapping[str, Any]) -> dict[str, Any]:
    first = (given.get("InstanceConfigs") or [given])[0]
    volume = first.get("VolumeSizeInGB") or given.get("VolumeSizeInGB") or 1
    return {
        "InstanceType": first.get("InstanceType", "ml.local"),
        "InstanceCount": first.get("InstanceCount", 1),
        "VolumeSizeInGB": volume,
    }
