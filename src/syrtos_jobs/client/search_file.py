"""SEARCH.yaml: a job in the form of `syrtos submit` and its search, read as a tuning request."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from syrtos.errors import ConfigurationError
from syrtos_jobs.client import job_file, travelling
from syrtos_jobs.tuning import requests, search

_KEYS = (
    "objective",
    "strategy",
    "parameters",
    "jobs",
    "parallel",
    "seed",
    "resource",
    "early_stopping",
    "warm_start",
)
_STRATEGIES = {"random": "Random", "grid": "Grid", "bayesian": "Bayesian", "hyperband": "Hyperband"}
_SCALES = {
    "auto": "Auto",
    "linear": "Linear",
    "log": "Logarithmic",
    "reverse_log": "ReverseLogarithmic",
}
_JOBS = 20
_MOST_VALUES = 30  # of a list, as in SageMaker's API


@dataclasses.dataclass(frozen=True)
class SearchFile:
    """A search's file that was read.

    Attributes:
        name: the tuning job's name, which changes if the file or its script changes.
        job: the arguments of `syrtos.Estimator`.
        inputs: the inputs of its `fit`.
        config: ``HyperParameterTuningJobConfig``.
        alone: the reason why only the script is sent, if the files beside it are too many.
        parents: earlier tuning jobs whose results count.
    """

    name: str
    job: Mapping[str, Any]
    inputs: Mapping[str, object] | str | None
    config: Mapping[str, object]
    alone: str = ""
    parents: tuple[str, ...] = ()

    def request(self, of_job: Mapping[str, Any]) -> dict[str, Any]:
        """Returns CreateHyperParameterTuningJob's parameters.

        They are made from ``of_job``, CreateTrainingJob's parameters for one such job.
        """
        definition = {key: of_job[key] for key in requests.SAME if key in of_job}
        definition |= {
            "StaticHyperParameters": of_job["HyperParameters"],
            "AlgorithmSpecification": of_job["AlgorithmSpecification"],
        }
        definition |= (
            {"CheckpointConfig": of_job["CheckpointConfig"]} if "CheckpointConfig" in of_job else {}
        )
        found = {
            "HyperParameterTuningJobName": self.name,
            "HyperParameterTuningJobConfig": self.config,
        }
        if self.parents:
            parents = [{"HyperParameterTuningJobName": name} for name in self.parents]
            same = {
                "ParentHyperParameterTuningJobs": parents,
                "WarmStartType": "IdenticalDataAndAlgorithm",
            }
            found["WarmStartConfig"] = same
        return {
            **found,
            "TrainingJobDefinition": definition,
            **({"Tags": of_job["Tags"]} if of_job.get("Tags") else {}),
        }

    def with_values(self, tuned: Mapping[str, str]) -> dict[str, Any]:
        """Returns the job with these values of its hyperparameters.

        The result is the content of a file for `syrtos submit` in any folder.
        """
        found = {
            **self.job,
            "hyperparameters": {**(self.job.get("hyperparameters") or {}), **_decode(tuned)},
        }
        if "git_config" not in found:
            key = "source_dir" if "source_dir" in found else "entry_point"
            found[key] = str(Path(found[key]).resolve())
            found |= {
                k: [str(Path(one).resolve()) for one in found[k]]
                for k in ("dependencies",)
                if found.get("dependencies")
            }
        return found | ({"inputs": self.inputs} if self.inputs else {})


def read(path: Path) -> SearchFile:
    """Reads a search's file.

    Raises:
        ConfigurationError: it describes no search.
    """
    facts = job_file.read(path, _KEYS)
    given = {key: facts.pop(key) for key in _KEYS if key in facts}
    missing = [key for key in ("objective", "parameters") if key not in given]
    if missing:
        raise ConfigurationError(
            f"{path} needs {' and '.join(missing)}, as `objective: {{maximize: val_accuracy}}` and"
            " `parameters: {lr: {min: 1e-4, max: 0.1}}`."
        )
    metric, goal, regex = _objective(given["objective"])
    if regex:
        facts["metric_definitions"] = [
            *facts.get("metric_definitions", ()),
            {"Name": metric, "Regex": regex},
        ]
    config = _config(given, metric, goal)
    staying = travelling.staying(path, facts)
    name = _name(path, {**facts, **given}, staying)
    alone = _send_along(facts, staying)
    inputs = facts.pop("inputs", None)
    found = SearchFile(name, facts, inputs, config, alone, _parents(given.get("warm_start", [])))
    static = dict.fromkeys(facts.get("hyperparameters") or {}, "")
    # the same checks as in the service, before anything is uploaded; static ones need names alone
    # for them
    search.read(found.request({"HyperParameters": static, "AlgorithmSpecification": {}}), 0)
    return found


def _objective(given: object) -> tuple[str, str, str]:
    """Returns the metric, ``Minimize`` or ``Maximize``, and the metric's regular expression.

    The regular expression is empty if there is none.
    """
    facts = dict(given) if isinstance(given, Mapping) else {}
    goals = [key for key in ("minimize", "maximize") if isinstance(facts.get(key), str)]
    regex = facts.get("regex", "")
    if len(goals) != 1 or set(facts) - {*goals, "regex"} or not isinstance(regex, str):
        raise ConfigurationError(
            "`objective` is {maximize: METRIC} or {minimize: METRIC}, and may have `regex`,"
            f" with one group for the number. Received: {given!r}."
        )
    return facts[goals[0]], goals[0].capitalize(), regex


def _config(given: Mapping[str, object], metric: str, goal: str) -> dict[str, object]:
    strategy = _STRATEGIES.get(str(given.get("strategy", "bayesian")).lower())
    if strategy is None:
        raise ConfigurationError(
            f"`strategy` is {', '.join(_STRATEGIES)}. Received: {given['strategy']!r}."
        )
    limits = {"MaxParallelTrainingJobs": _count(given, "parallel", 1)}
    if "jobs" in given or strategy != "Grid":
        limits["MaxNumberOfTrainingJobs"] = _count(given, "jobs", _JOBS)
    config: dict[str, object] = {
        "Strategy": strategy,
        "HyperParameterTuningJobObjective": {"Type": goal, "MetricName": metric},
        "ResourceLimits": limits,
        "ParameterRanges": _ranges(given["parameters"]),
        "TrainingJobEarlyStoppingType": "Auto" if given.get("early_stopping") else "Off",
    }
    if "seed" in given:
        config["RandomSeed"] = _count(given, "seed", 0, least=0)
    if "resource" in given:
        config["StrategyConfig"] = {"HyperbandStrategyConfig": _resource(given["resource"])}
    return config


def _parents(given: object) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            "`warm_start` is the name of an earlier search, or a list of names. Received:"
            f" {given!r}."
        )
    return tuple(names)


def _count(given: Mapping[str, object], key: str, default: int, least: int = 1) -> int:
    value = given.get(key, default)
    if type(value) is not int or value < least:
        raise ConfigurationError(
            f"`{key}` is a whole number of at least {least}. Received: {value!r}."
        )
    return value


def _resource(given: object) -> dict[str, int]:
    if not isinstance(given, Mapping) or set(given) - {"min", "max"}:
        raise ConfigurationError(
            "`resource` has `min` and `max`: values of the metric that a trial reports. Received:"
            f" {given!r}."
        )
    names = {"min": "MinResource", "max": "MaxResource"}
    return {names[key]: _count(given, key, 1) for key in given}


def _ranges(given: object) -> dict[str, list[dict[str, object]]]:
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(
            "`parameters` names at least one hyperparameter, as `lr: {min: 1e-4, max: 0.1, scale:"
            " log}` or `batch_size: [32, 64]`."
        )
    found: dict[str, list[dict[str, object]]] = {}
    for name, facts in given.items():
        kind, one = _range(str(name), facts)
        found.setdefault(f"{kind}ParameterRanges", []).append({"Name": str(name), **one})
    return found


def _range(name: str, given: object) -> tuple[str, Mapping[str, object]]:
    if isinstance(given, list):
        if not 1 <= len(given) <= _MOST_VALUES:
            raise ConfigurationError(
                f"A list has 1 to {_MOST_VALUES} values. Received for {name}: {len(given)}."
            )
        return "Categorical", {"Values": [json.dumps(value) for value in given]}
    if (
        not isinstance(given, Mapping)
        or not {"min", "max"} <= set(given)
        or set(given) - {"min", "max", "scale"}
    ):
        unknown = (
            ", ".join(sorted(set(map(str, given)) - {"min", "max", "scale"}))
            if isinstance(given, Mapping)
            else ""
        )
        raise ConfigurationError(
            f"The hyperparameter {name} has a list of values, or min and max, and may have scale."
            + (f" Unknown: {unknown}." if unknown else f" Received: {given!r}.")
        )
    scale = _SCALES.get(str(given.get("scale", "auto")))
    if scale is None:
        raise ConfigurationError(
            f"The scale of {name} is {', '.join(_SCALES)}. Received: {given['scale']!r}."
        )
    # not `isinstance`, which takes True for a number
    whole = all(type(given[end]) is int for end in ("min", "max"))
    ends = {"MinValue": str(given["min"]), "MaxValue": str(given["max"]), "ScalingType": scale}
    return "Integer" if whole else "Continuous", ends


def _send_along(facts: dict[str, Any], staying: Collection[Path]) -> str:
    """Makes the files beside a script its dependencies, unless the search's file says what is sent.

    Returns:
        The reason why only the script is sent, if the files are too many; otherwise empty.
    """
    script = Path(str(facts["entry_point"]))
    if _says_what_travels(facts) or not script.is_file():
        return ""
    found = travelling.files_beside(script, staying)
    if found:
        facts["dependencies"] = [str(path) for path in found]
    return (
        f"The folder of {script.name} has more than 2000 files or 64 MiB, so only {script.name}"
        " itself was sent along: if it needs files beside it, set `source_dir: .` in the file of"
        " the search."
        if found is None
        else ""
    )


def _says_what_travels(facts: Mapping[str, object]) -> bool:
    return bool({"source_dir", "git_config", "dependencies"} & set(facts))


def _name(path: Path, facts: Mapping[str, Any], staying: Collection[Path]) -> str:
    """Returns the search's name, which differs for each search."""
    # the same file in the same folder, with the same source, has the same name: it continues with
    # the results so far
    script = Path(str(facts["entry_point"]))
    sent = [] if facts.get("git_config") else [Path(one) for one in facts.get("dependencies") or ()]
    if "source_dir" in facts and not facts.get("git_config"):
        sent.append(Path(facts["source_dir"]))
    elif script.is_file():
        sent += [
            script,
            *([] if _says_what_travels(facts) else travelling.files_beside(script, staying) or []),
        ]
    known = json.dumps([str(path.parent.resolve()), facts], sort_keys=True, default=str)
    source = travelling.digest([one for one in sent if one.exists()], staying)
    digest = hashlib.sha256((known + source).encode()).hexdigest()[:6]
    base = (
        re.sub(r"[^A-Za-z0-9]+", "-", str(facts.get("base_job_name") or path.stem))
        .strip("-")[:25]
        .strip("-")
    )
    return f"{base or 'search'}-{digest}"


def _decode(tuned: Mapping[str, str]) -> dict[str, object]:
    return {name: json.loads(text) for name, text in tuned.items()}
