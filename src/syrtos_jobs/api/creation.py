"""A CreateTrainingJob request, as SageMaker's SDK v2 would make it from the same arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from syrtos.errors import ConfigurationError
from syrtos_jobs.store.home import ACCOUNT


class EstimatorFacts(TypedDict):
    """The arguments of `Estimator` that a request is made of."""

    instance_count: int
    hyperparameters: Mapping[str, object] | None
    environment: Mapping[str, object] | None
    distribution: Mapping[str, Any] | None
    metric_definitions: Sequence[Mapping[str, str]]
    checkpoint_s3_uri: str | None
    checkpoint_local_path: str | None
    use_spot_instances: bool
    max_wait: int | None
    max_run: int
    max_retry_attempts: int | None
    input_mode: str
    tags: Sequence[Mapping[str, str]]
    instance_type: str
    role: str | None
    framework_version: str | None
    py_version: str | None
    image_uri: str | None


FACTS = frozenset(EstimatorFacts.__annotations__)

_CHANNEL_FACTS = (
    "uri",
    "distribution",
    "input_mode",
    "content_type",
    "shuffle_seed",
    "record_wrapping",
    "compression",
    "s3_data_type",
)


def build(
    name: str,
    program: str,
    code: str,
    output: str,
    inputs: Mapping[str, object] | str | None,
    facts: EstimatorFacts,
) -> dict[str, object]:
    """Returns the request for a job whose source is at ``code``.

    Raises:
        ConfigurationError: a distribution or a channel is not one that SageMaker has.
    """
    own = {key: json.dumps(value) for key, value in (facts["hyperparameters"] or {}).items()}
    own |= {
        "sagemaker_program": json.dumps(program),
        "sagemaker_submit_directory": json.dumps(code),
    }
    own |= _distribution(facts["distribution"] or {})
    stopping = {"MaxRuntimeInSeconds": facts["max_run"]}
    if facts["use_spot_instances"]:
        stopping["MaxWaitTimeInSeconds"] = facts["max_wait"] or facts["max_run"]
    request: dict[str, object] = {
        "TrainingJobName": name,
        "RoleArn": facts["role"] or f"arn:aws:iam::{ACCOUNT}:role/syrtos",
        "AlgorithmSpecification": {
            "TrainingImage": facts["image_uri"] or _image(facts),
            "TrainingInputMode": facts["input_mode"],
            "MetricDefinitions": [dict(one) for one in facts["metric_definitions"]],
        },
        "HyperParameters": own,
        "Environment": {key: str(value) for key, value in (facts["environment"] or {}).items()},
        "InputDataConfig": _channels(inputs),
        "OutputDataConfig": {"S3OutputPath": _uri(output)},
        "ResourceConfig": {
            "InstanceType": facts["instance_type"],
            "InstanceCount": facts["instance_count"],
            "VolumeSizeInGB": 30,
        },
        "StoppingCondition": stopping,
        "EnableManagedSpotTraining": facts["use_spot_instances"],
        "Tags": [dict(tag) for tag in facts["tags"]],
    }
    retries = facts["max_retry_attempts"]
    if retries is not None:
        if type(retries) is not int or not 1 <= retries <= 30:
            raise ConfigurationError(
                f"Workers can be started again 1 to 30 times. Received: {retries!r}."
            )
        request["RetryStrategy"] = {"MaximumRetryAttempts": retries}
    if facts["checkpoint_s3_uri"]:
        local = (
            {"LocalPath": facts["checkpoint_local_path"]} if facts["checkpoint_local_path"] else {}
        )
        request["CheckpointConfig"] = {"S3Uri": _uri(facts["checkpoint_s3_uri"]), **local}
    return {key: value for key, value in request.items() if value not in ([], {})}


def _image(facts: EstimatorFacts) -> str:
    asked = facts["framework_version"]
    return f"tensorflow-training:{asked}-cpu-{facts['py_version'] or 'py3'}" if asked else "syrtos"


def _channels(inputs: Mapping[str, object] | str | None) -> list[dict[str, object]]:
    if isinstance(inputs, (str, Path)):
        inputs = {"training": inputs}
    return [_channel(name, given) for name, given in (inputs or {}).items()]


def _channel(name: str, given: object) -> dict[str, object]:
    facts: dict[str, object] = dict(given) if isinstance(given, Mapping) else {"uri": given}
    unknown = set(facts) - set(_CHANNEL_FACTS)
    if unknown or "uri" not in facts:
        raise ConfigurationError(
            f"The channel {name} is a path or URI, or a mapping with {', '.join(_CHANNEL_FACTS)}."
            f" Received: {given!r}."
        )
    source = {
        "S3DataType": facts.get("s3_data_type", "S3Prefix"),
        "S3Uri": _uri(facts["uri"]),
        "S3DataDistributionType": facts.get("distribution", "FullyReplicated"),
    }
    channel: dict[str, object] = {"ChannelName": name, "DataSource": {"S3DataSource": source}}
    for fact, field in (
        ("input_mode", "InputMode"), ("content_type", "ContentType"), ("record_wrapping", "RecordWrapperType"),
        ("compression", "CompressionType"),
    ):  # fmt: skip
        channel |= {field: facts[fact]} if fact in facts else {}
    return channel | (
        {"ShuffleConfig": {"Seed": facts["shuffle_seed"]}} if "shuffle_seed" in facts else {}
    )


def _uri(place: object) -> str:
    """Returns a path of this machine as a URI; a URI is returned as it is."""
    text = str(place)
    # resolved here: the service's process has another working directory
    return text if "://" in text else Path(text).resolve().as_uri()


def _distribution(asked: Mapping[str, Any]) -> dict[str, str]:
    """Returns the hyperparameters that SDK v2 makes of ``distribution=``.

    The SDK's function for it is estimator._distribution_configuration.
    """
    found: dict[str, object] = {}
    for kind, options in asked.items():
        if kind == "mpi":
            found["sagemaker_mpi_enabled"] = options.get("enabled", False)
            if "processes_per_host" in options:
                found["sagemaker_mpi_num_of_processes_per_host"] = options["processes_per_host"]
            found["sagemaker_mpi_custom_mpi_options"] = options.get("custom_mpi_options", "")
        elif kind == "smdistributed":
            parallel = options.get("dataparallel", {})
            found["sagemaker_distributed_dataparallel_enabled"] = parallel.get("enabled", False)
            found["sagemaker_distributed_dataparallel_custom_mpi_options"] = parallel.get(
                "custom_mpi_options", ""
            )
        elif kind in ("parameter_server", "multi_worker_mirrored_strategy"):
            found[f"sagemaker_{kind}_enabled"] = options.get("enabled", False)
        else:
            raise ConfigurationError(
                "`distribution` can be mpi, smdistributed, parameter_server or"
                f" multi_worker_mirrored_strategy. Received: {kind!r}."
            )
    return {name: json.dumps(value) for name, value in found.items()}
