"""Cloning of a job: its request with another name, and without the secrets of the first job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypedDict

from syrtos.errors import ConfigurationError
from syrtos.settings import is_secret
from syrtos_jobs.requests.hyperparameters import decode, of_script
from syrtos_jobs.store.job_store import Record

_PARTS = ("Environment", "HyperParameters")


class Offer(TypedDict):
    """The parts of a job that a person may change in a clone.

    Attributes:
        hyperparameters: the script's own, as JSON.
        secrets: the names of secrets, whose values are not told.
        checkpoints: the URI of the job's checkpoints, which the clone would go on from.
    """

    hyperparameters: str
    secrets: list[str]
    checkpoints: str


def offer(record: Record) -> Offer:
    """Returns the parts of a job that a person may change in a clone."""
    request = record.request
    own = of_script(request.get("HyperParameters") or {})
    shown = {name: value for name, value in own.items() if not is_secret(name)}
    names = {name for part in _PARTS for name in request.get(part) or () if is_secret(name)}
    return {
        "hyperparameters": json.dumps(shown, indent=2, ensure_ascii=False),
        "secrets": sorted(names),
        "checkpoints": (request.get("CheckpointConfig") or {}).get("S3Uri", ""),
    }


def request_of(
    record: Record, name: str, hyperparameters: str, secrets: Mapping[str, str]
) -> dict[str, Any]:
    """Returns CreateTrainingJob's parameters for a clone.

    Args:
        record: the job.
        name: the clone's name.
        hyperparameters: the script's own, as a JSON object.
        secrets: new values of secrets by name; those without a value are left out.

    Raises:
        ConfigurationError: the hyperparameters are no JSON object.
    """
    request = {
        key: value
        for key, value in record.request.items()
        if key not in ("Tags", "TuningJobArn", *_PARTS)
    }
    request["TrainingJobName"] = name
    if record.tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in record.tags.items()]
    parts = {part: dict(record.request.get(part) or {}) for part in _PARTS}
    before = parts["HyperParameters"]
    given = {
        key: _encode(value, before.get(key)) for key, value in _object(hyperparameters).items()
    }
    own = of_script(before)
    parts["HyperParameters"] = {
        k: v for k, v in before.items() if k not in own or is_secret(k)
    } | given
    if "sagemaker_job_name" in before:
        parts["HyperParameters"]["sagemaker_job_name"] = json.dumps(name)
    # secrets are never copied: whoever may clone a job need not know them
    for part, values in parts.items():
        kept = {key: value for key, value in values.items() if key in given or not is_secret(key)}
        renewed = {key: secrets[key] for key in values if key not in kept and secrets.get(key)}
        request |= {part: {**kept, **renewed}} if kept or renewed else {}
    return request


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The hyperparameters are no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ConfigurationError('The hyperparameters are a JSON object, as {"epochs": 3}.')
    return found


def _encode(value: object, before: str | None) -> str:
    """Returns a value as the text that the API takes."""
    # an unchanged value keeps the text it was sent as, whichever of JSON's spellings it has
    if before is not None and json.dumps(decode(before)) == json.dumps(value):
        return before
    # a text that can't be taken for another value needs no quotes, but keeps those that it had
    if isinstance(value, str) and decode(value) == value and not (before or "").startswith('"'):
        return value
    return json.dumps(value)
