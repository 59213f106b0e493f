"""A YAML file that describes a job: the arguments of `syrtos.Estimator`, and ``inputs``."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from syrtos.errors import ConfigurationError
from syrtos.launch.spelling import closest_name
from syrtos_jobs.client.estimator import Estimator


def read(path: Path, also: Collection[str] = ()) -> dict[str, Any]:
    """Reads a job's file; the paths of its source are relative to it.

    Args:
        path: the file.
        also: more keys that it may have.

    Returns:
        The values by key.

    Raises:
        ConfigurationError: it can't be read, or has other keys.
    """
    try:
        # a file and not its text: YAML's messages then name it
        with path.open(encoding="utf-8") as file:
            facts = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from error
    known = {*inspect.signature(Estimator.__init__).parameters, "inputs", *also} - {"self", "home"}
    if not isinstance(facts, dict) or "entry_point" not in facts or set(facts) - known:
        unknown = sorted(map(str, set(facts) - known)) if isinstance(facts, dict) else []
        raise ConfigurationError(
            (
                f"Unknown: {', '.join(_with_suggestion(name, known) for name in unknown)}. "
                if unknown
                else ""
            )
            + f"{path} must be a mapping with `entry_point`, and may have"
            f" {', '.join(sorted(known))}."
        )
    facts = {name: value for name, value in facts.items() if value is not None}
    # relative to the file that names them; the entry point, only if it is not inside a source
    # folder
    for name in ("source_dir", "entry_point"):
        if name in facts and (
            name == "source_dir" or not {"source_dir", "git_config"} & set(facts)
        ):
            facts[name] = str(path.parent / facts[name])
    return facts


def _with_suggestion(name: str, known: Collection[str]) -> str:
    near = closest_name(name, known)
    return f"{name} (did you mean {near}?)" if near else name
