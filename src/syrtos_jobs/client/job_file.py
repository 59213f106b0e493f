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
    for name, value in facts.items():
        if wrong := _wrong_type(name, value):
            raise ConfigurationError(f"{path}: {wrong}")
    # relative to the file that names them; the entry point, only if it is not inside a source
    # folder
    for name in ("source_dir", "entry_point"):
        if name in facts and (
            name == "source_dir" or not {"source_dir", "git_config"} & set(facts)
        ):
            facts[name] = str(path.parent / facts[name])
    return facts


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
    arguments = inspect.signature(Estimator.__init__).parameters
    if name == "inputs":
        kind, words = (str, dict), "a text or a mapping"
    elif name in arguments:
        kind, words = _KINDS[re.split(r"\W", str(arguments[name].annotation))[0]]
    else:
        return ""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return f"`{name}` should be {words}. Received: {value!r}."
    element, words = _ELEMENTS.get(name, (object, ""))
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    keys = value if isinstance(value, dict) else ()
    wrong = [one for one in keys if not isinstance(one, str)]
    wrong += [one for one in values if not isinstance(one, element)]
    return (
        f"`{name}` should have {words or 'texts as keys'}. Received: {wrong[0]!r}." if wrong else ""
    )


def _with_suggestion(name: str, known: Collection[str]) -> str:
    near = closest_name(name, known)
    return f"{name} (did you mean {near}?)" if near else name
