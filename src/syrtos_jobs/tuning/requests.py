"""The requests for a tuning job's training jobs.

CreateTrainingJob's parameters are made from the tuning job's definition and the values that were
chosen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from syrtos_jobs.store.home import ACCOUNT, REGION

# What a TrainingJobDefinition and a training job have under the same name.
SAME = (
    "RoleArn", "InputDataConfig", "VpcConfig", "OutputDataConfig", "ResourceConfig", "StoppingCondition", "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining", "RetryStrategy", "Environment",
)  # fmt: skip
# A number, or NaN or infinity. It ends where the number does: no version (1.2.3), time (12:30) or
# date begins with one.
NUMBER = r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[nN][aA][nN]|[iI][nN][fF](?:inity|INITY)?)(?!\w|[.,:/-][0-9])"
OBJECTIVE = "_tuning_objective_metric"  # the hyperparameter that names the metric


def arn(name: str) -> str:
    """Returns a tuning job's ARN, its name within all of AWS."""
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:hyper-parameter-tuning-job/{name}"


def definition_of(request: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Returns the definition of a tuning job's training jobs as Describe gives it."""
    definition = request["TrainingJobDefinition"]
    # SDK v2's `attach` looks for the objective's name among the hyperparameters, and for its
    # expression among the metrics
    static = {**(definition.get("StaticHyperParameters") or {}), OBJECTIVE: metric}
    instances = definition.get("HyperParameterTuningResourceConfig")
    # SDK v2 looks for instances in a ResourceConfig, although it sends them as a
    # HyperParameterTuningResourceConfig
    resources = {"ResourceConfig": _resources(instances)} if instances else {}
    algorithm = _algorithm(definition["AlgorithmSpecification"], metric)
    return {
        **resources,
        **definition,
        "StaticHyperParameters": static,
        "AlgorithmSpecification": algorithm,
    }


def of_trial(
    request: Mapping[str, Any], metric: str, name: str, tuned: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the request for one training job.

    Args:
        request: the tuning job's request.
        metric: the name of its objective.
        name: the training job's name.
        tuned: the values that were chosen for its hyperparameters.
    """
    definition = definition_of(request, metric)
    found = {key: definition[key] for key in SAME if key in definition}
    found |= {
        "TrainingJobName": name,
        "TuningJobArn": arn(request["HyperParameterTuningJobName"]),
        "HyperParameters": {**definition["StaticHyperParameters"], **tuned},
        "AlgorithmSpecification": definition["AlgorithmSpecification"],
    }
    if "CheckpointConfig" in definition:
        # each training job has checkpoints of its own, or one would go on from another's
        checkpoints = definition["CheckpointConfig"]
        found["CheckpointConfig"] = {
            **checkpoints,
            "S3Uri": f"{checkpoints['S3Uri'].rstrip('/')}/{name}",
        }
    return found | ({"Tags": request["Tags"]} if request.get("Tags") else {})


def default_regex(metric: str) -> str:
    """Returns an expression that finds a metric's last value in a line.

    It matches Keras's form (``val_accuracy: 0.97``), and ``val_accuracy=0.97``.
    """
    return rf".*(?<![\w-]){re.escape(metric)}\s*[:=]\s*({NUMBER})"


def _algorithm(given: Mapping[str, Any], metric: str) -> dict[str, object]:
    definitions: list[dict[str, str]] = list(given.get("MetricDefinitions") or ())
    if metric not in [definition["Name"] for definition in definitions]:
        definitions.append({"Name": metric, "Regex": default_regex(metric)})
    return {**given, "MetricDefinitions": definitions}


def _resources(given: Mapping[str, Any]) -> dict[str, object]:
    first = (given.get("InstanceConfigs") or [given])[0]
    volume = first.get("VolumeSizeInGB") or given.get("VolumeSizeInGB") or 1
    return {
        "InstanceType": first.get("InstanceType", "ml.local"),
        "InstanceCount": first.get("InstanceCount", 1),
        "VolumeSizeInGB": volume,
    }
