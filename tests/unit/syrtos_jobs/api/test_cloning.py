"""Jobs that are asked for once more."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from syrtos.errors import ConfigurationError
from syrtos_jobs.api import cloning
from syrtos_jobs.requests import states
from syrtos_jobs.store.job_store import Record

SDK = {"sagemaker_program": '"train.py"', "sagemaker_submit_directory": '"s3://bucket/code.tar.gz"'}


def record(
    given: dict[str, str] | None = None, tags: dict[str, str] | None = None, **facts: Any
) -> Record:
    request = {
        "TrainingJobName": "first",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.x", "InstanceCount": 2, "VolumeSizeInGB": 1},
        "HyperParameters": {**SDK, **(given or {})},
        "Tags": [{"Key": "old", "Value": "tag"}],
        **facts,
    }
    return Record(
        name="first", request=request, tags=tags or {}, state=states.initial_state(time.time()), created=0.0, modified=0.0, slots=2,
        spot=False, access_key="x",
    )  # fmt: skip


def test_all_but_the_name_is_the_same() -> None:
    found = record(
        {"rate": "0.10", "name": '"a"', "plain": "b"}, {"team": "vision"}, Environment={"A": "1"}
    )
    wanted = cloning.offer(found)["hyperparameters"]
    assert json.loads(wanted) == {"rate": 0.1, "name": "a", "plain": "b"}
    request = cloning.request_of(found, "second", wanted, {})
    tags = [{"Key": "team", "Value": "vision"}]  # those that the job has now
    assert request == {**found.request, "TrainingJobName": "second", "Tags": tags}


@pytest.mark.parametrize(
    ("value", "before", "expected"),
    [
        (3, "2", "3"), ("b", '"a"', '"b"'), ("b", "a", "b"), ("1", "a", '"1"'), ("1", None, '"1"'), ("x y", None, "x y"),
        (True, "1", "true"), (1.0, "1", "1.0"), ([1, None], None, "[1, null]"), (10**30, "1", "1" + "0" * 30),
    ],
)  # fmt: skip
def test_values_are_written_as_before(value: Any, before: str | None, expected: str) -> None:
    found = record({} if before is None else {"given": before})
    request = cloning.request_of(found, "second", json.dumps({"given": value}), {})
    assert request["HyperParameters"] == {**SDK, "given": expected}


def test_hyperparameters_that_were_left_out_are_gone() -> None:
    found = record({"a": "1", "b": "2", "sagemaker_job_name": '"first"'})
    request = cloning.request_of(found, "second", '{"b": 2}', {})
    assert request["HyperParameters"] == {**SDK, "sagemaker_job_name": '"second"', "b": "2"}


def test_secrets_are_neither_told_nor_copied() -> None:
    found = record(
        {"auth_token": "hidden-1", "a": "1"},
        Environment={"DB_PASSWORD": "hidden-2", "HF_TOKEN": "hidden-3"},
    )
    offered = cloning.offer(found)
    assert "hidden" not in json.dumps(offered)
    assert offered["secrets"] == ["DB_PASSWORD", "HF_TOKEN", "auth_token"]
    request = cloning.request_of(
        found, "second", offered["hyperparameters"], {"HF_TOKEN": "new", "other": "x"}
    )
    assert "hidden" not in json.dumps(request)
    assert request["Environment"] == {"HF_TOKEN": "new"}
    assert request["HyperParameters"] == {**SDK, "a": "1"}
    assert "Environment" not in cloning.request_of(found, "second", "", {})
    assert (
        cloning.request_of(found, "second", '{"auth_token": "t"}', {})["HyperParameters"][
            "auth_token"
        ]
        == "t"
    )


@pytest.mark.parametrize("text", ["[1]", "3", "{", "nothing", "[" * 100_000])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="hyperparameters are"):
        cloning.request_of(record(), "second", text, {})
