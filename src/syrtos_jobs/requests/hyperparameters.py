"""Hyperparameters as SDK v2 sends them: the script's own, their values, and its command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from syrtos.errors import ConfigurationError

# Hyperparameters of the toolkit, not of the script, by sagemaker-training 5.1 (params.py).
_RESERVED = frozenset({"default_user_module_name", "_tuning_objective_metric"})
_OF_TOOLKIT = _RESERVED | {
    "sagemaker_program", "sagemaker_submit_directory", "sagemaker_enable_cloudwatch_metrics", "sagemaker_region",
    "sagemaker_container_log_level", "sagemaker_job_name", "sagemaker_s3_output",
}  # fmt: skip


def decode(text: str) -> Any:
    """Returns a hyperparameter's value, parsed if it is JSON, as the text otherwise."""
    # as mapping.decode of sagemaker-training does; RecursionError: lists in lists in lists
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def of_script(hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    """Returns the script's own hyperparameters, decoded: those that are not for a toolkit."""
    own = {
        k: v
        for k, v in hyperparameters.items()
        if not k.startswith("sagemaker_") and k not in _RESERVED
    }
    return {name: decode(value) for name, value in own.items()}


def source_of(hyperparameters: Mapping[str, str]) -> str:
    """Returns the place of the source: a URI, or a path of the instance.

    Raises:
        ConfigurationError: it is no text.
    """
    found = decode(hyperparameters.get("sagemaker_submit_directory", ""))
    if not isinstance(found, str):
        raise ConfigurationError(
            f"sagemaker_submit_directory must be a URI or a path. Received: {found!r}."
        )
    return found


def of_framework(hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    """Returns the hyperparameters that are for a framework's container, decoded."""
    found = {
        k: v
        for k, v in hyperparameters.items()
        if k.startswith("sagemaker_") and k not in _OF_TOOLKIT
    }
    return {name: decode(value) for name, value in found.items()}


def arguments_v2(values: Mapping[str, object]) -> list[str]:
    """Returns a command line by the rules of sagemaker-training 5.1 (mapping.to_cmd_args)."""
    words = []
    for name in sorted(values):
        words += ["-" + name if len(name) == 1 else "--" + name, _as_argument(values[name])]
    return words


def _as_argument(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={part}" for key, part in sorted(value.items()))
    return str(value)
