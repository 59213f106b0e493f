"""A YAML file that describes a job: the arguments of `syrtos.Estimator`, and ``inputs``."""

from __future__ import annotations

import inspect
import re
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
    known = {*_ARGUMENTS, "inputs", *also}
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
    for name in [key for key in facts if key not in also]:
        value = facts[name]
        if wrong := _wrong_type(name, value) or _wrong_element(name, value):
            raise ConfigurationError(f"{path}: {wrong}")
    # relative to the file that names them; the entry point, only if it is not inside a source
    # folder
    for name in ("source_dir", "entry_point"):
        if name in facts and (
            name == "source_dir" or not {"source_dir", "git_config"} & set(facts)
        ):
            facts[name] = str(path.parent / facts[name])
    return facts


# The arguments of an Estimator, with their annotations.
_ARGUMENTS = {
    name: str(parameter.annotation)
    for name, parameter in inspect.signature(Estimator.__init__).parameters.items()
    if name not in ("self", "home")
}
# What YAML gives for an annotation of an argument, by the annotation's first word.
_KINDS: dict[str, tuple[type, str]] = {
    "Mapping": (dict, "a mapping"),
    "Sequence": (list, "a list"),
    "bool": (bool, "true or false"),
    "int": (int, "a whole number"),
    "str": (str, "a text: write numbers in quotes"),
}
# Of what the lists and mappings of some keys are.
_ELEMENTS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "dependencies": (str, "texts"),
    "metric_definitions": (dict, "mappings"),
    "tags": (dict, "mappings"),
    "git_config": (str, "texts"),
    "environment": (str, "texts: write numbers, true and false in quotes"),
    "inputs": ((str, dict), "texts, or mappings with `uri`"),
}


def _wrong_type(name: str, value: object) -> str:
    """Returns the sentence that says what a key's value should be; empty where it is that."""
    if name == "inputs":
        kind, words = (str, dict), "a text or a mapping"
    else:
        kind, words = _KINDS[re.split(r"\W", _ARGUMENTS[name])[0]]
    is_right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    return "" if is_right else f"`{name}` should be {words}. Received: {value!r}."


def _wrong_element(name: str, value: object) -> str:
    """Returns the sentence that says what a list or mapping should have; empty where it has that."""
    element, words = _ELEMENTS.get(name, (object, "texts as keys"))
    wrong: list[object] = []
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str)]
        value = list(value.values())
    if isinstance(value, list):
        wrong += [one for one in value if not isinstance(one, element)]
    return f"`{name}` should have {words}. Received: {wrong[0]!r}." if wrong else ""


def _with_suggestion(name: str, known: Collection[str]) -> str:
    near = closest_name(name, known)
    return f"{name} (did you mean {near}?)" if near else name
