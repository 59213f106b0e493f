"""AWS's own training toolkit (sagemaker-training 5.1): it runs unmodified on our instances, and what it tells scripts is what we tell them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import environments
import pytest
from sdks import HYPERPARAMETERS, SOURCE, Ran, Service, needs, same_weights, unpacked

pytestmark = [needs("toolkit"), pytest.mark.slow]

_TRAIN = str(environments.FOLDER / "toolkit" / "bin" / "train")
_CHANNEL = {"S3DataType": "S3Prefix", "S3DataDistributionType": "FullyReplicated"}
_AS_SDK = {
    **{name: json.dumps(value) for name, value in HYPERPARAMETERS.items()},
    "sagemaker_program": '"witness.py"',
    "sagemaker_submit_directory": '"s3://ours/sourcedir.tar.gz"',
    "sagemaker_region": '"us-west-2"',
    "sagemaker_container_log_level": "20",
}


def request(name: str, instances: int, entrypoint: list[str], **facts: Any) -> dict[str, Any]:
    """CreateTrainingJob's parameters."""
    algorithm = {"TrainingImage": "toolkit", "TrainingInputMode": "File"}
    return {
        "TrainingJobName": name,
        "AlgorithmSpecification": {
            **algorithm,
            **({"ContainerEntrypoint": entrypoint} if entrypoint else {}),
        },
        "ResourceConfig": {
            "InstanceType": "ml.m5.large",
            "InstanceCount": instances,
            "VolumeSizeInGB": 1,
        },
        "InputDataConfig": [channel("train", "digits")],
        **facts,
    }


def channel(name: str, prefix: str) -> dict[str, Any]:
    """A channel of our bucket."""
    return {
        "ChannelName": name,
        "DataSource": {"S3DataSource": {**_CHANNEL, "S3Uri": f"s3://ours/{prefix}"}},
    }


def created(service: Service, digits: Path, folder: Path, asked: dict[str, Any]) -> Ran:
    """A job, from its creation to its end."""
    folder = folder / asked["TrainingJobName"]
    folder.mkdir()
    facts = {"source": str(SOURCE), "data": str(digits), "folder": str(folder)}
    return service.run("toolkit", "boto_job.py", request=asked, **facts)


def seen_by(ran: Ran, folder: Path) -> dict[str, Any]:
    """What the script has written down, by host."""
    return {
        path.stem: json.loads(path.read_text())
        for path in unpacked(ran.answer["model"], folder).glob("*.json")
    }


@pytest.mark.parametrize("instances", [1, 2])
def test_it_runs_unmodified(service: Service, digits: Path, tmp_path: Path, instances: int) -> None:
    """The source is a channel here."""
    asked = request(f"toolkit-{instances}", instances, [_TRAIN])
    asked["InputDataConfig"] += [channel("source", "code")]
    asked["Environment"] = {"SAGEMAKER_PROGRAM": "witness.py"}
    asked["HyperParameters"] = {
        "epochs": "3",
        "sagemaker_submit_directory": "/opt/ml/input/data/source",
    }
    ran = created(service, digits, tmp_path, asked)
    assert any("Reporting training SUCCESS" in line for line in ran.answer["lines"])
    seen = seen_by(ran, tmp_path / "model")
    assert sorted(seen) == [f"algo-{k + 1}" for k in range(instances)]
    for host, facts in seen.items():
        assert (facts["host"], facts["folder"]) == (host, "/opt/ml/code")
        assert facts["arguments"] == ["--epochs", "3"]
        assert len(set(facts["addresses"].values())) == instances
        assert facts["data"] == ["train/digits.npz"]
    written = unpacked(ran.answer["output"], tmp_path / "output")
    assert sorted(path.name for path in written.iterdir()) == [
        f"algo-{k + 1}.txt" for k in range(instances)
    ]


@pytest.mark.parametrize("distribution", ["none", "multi_worker_mirrored_strategy"])
def test_scripts_see_what_it_shows_them(
    service: Service, digits: Path, tmp_path: Path, distribution: str
) -> None:
    """The same request with its `train` and without: arguments, variables and files are equal."""
    given = (
        {**_AS_SDK, f"sagemaker_{distribution}_enabled": "true"}
        if distribution != "none"
        else _AS_SDK
    )
    ran = {
        kind: created(
            service,
            digits,
            tmp_path,
            request(f"{kind}-{distribution[:5]}", 1, command, HyperParameters=given),
        )
        for kind, command in (("theirs", [_TRAIN]), ("ours", []))
    }
    started_by_it = [
        any("Reporting training SUCCESS" in line for line in one.answer["lines"])
        for one in ran.values()
    ]
    assert started_by_it == [True, False]
    theirs, ours = (seen_by(one, tmp_path / f"{kind}-model")["algo-1"] for kind, one in ran.items())
    for fact in ("arguments", "config", "folder", "host", "data"):
        assert ours[fact] == theirs[fact]
    variables = [
        {k: _parsed(v) for k, v in one["variables"].items() if k.startswith("SM_")}
        for one in (ours, theirs)
    ]
    facts = [one.pop("SM_TRAINING_ENV") for one in variables]
    for mine, its in (variables, facts):
        other = {
            name: (mine.get(name), value) for name, value in its.items() if mine.get(name) != value
        }
        other.pop("job_name", None)  # the jobs' own names
        assert other == {}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_a_line_of_the_shell_makes_a_world_of_all_instances(
    service: Service, digits: Path, plain_model: Path, tmp_path: Path
) -> None:
    """SDK v2 on SageMaker itself: `entry_point="run.sh"`, which the toolkit starts on each instance."""
    asked = request("toolkit-world", 2, [_TRAIN])
    asked["InputDataConfig"] += [channel("source", "code")]
    asked["Environment"] = {"SAGEMAKER_PROGRAM": "run.sh", "SYRTOS_SECRET": "known to both"}
    own = {
        name: json.dumps(HYPERPARAMETERS[name])
        for name in ("epochs", "batch-size", "learning_rate")
    }
    asked["HyperParameters"] = {**own, "sagemaker_submit_directory": "/opt/ml/input/data/source"}
    ran = created(service, digits, tmp_path, asked)
    lines = "\n".join(ran.answer["lines"])
    assert "2 workers on algo-1, algo-2" in lines
    assert "known to both" not in lines
    same_weights(unpacked(ran.answer["model"], tmp_path / "model") / "digits.keras", plain_model)
