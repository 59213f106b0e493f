"""Requests and answers by AWS's models: all that they say is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos_jobs.api.service import ApiError
from syrtos_jobs.http import model

MODEL = model.service_model("sagemaker")
CREATE: Any = MODEL.operation_model("CreateTrainingJob")
LIST: Any = MODEL.operation_model("ListTrainingJobs")
GOOD: dict[str, Any] = {
    "TrainingJobName": "job-1",
    "AlgorithmSpecification": {"TrainingInputMode": "File", "TrainingImage": "x"},
    "RoleArn": "arn:aws:iam::000000000000:role/anyone",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
}


def parsed(request: Any, operation: Any = CREATE) -> dict[str, Any]:
    return model.parse_request(
        operation.input_shape,
        request if isinstance(request, bytes) else json.dumps(request).encode(),
    )


def code(request: Any, operation: Any = CREATE) -> str:
    with pytest.raises(ApiError) as error:
        parsed(request, operation)
    return error.value.code


def test_good_requests() -> None:
    assert parsed(GOOD) == GOOD
    assert parsed({**GOOD, "Environment": None}) == GOOD
    assert parsed(b"", LIST) == {}
    assert parsed({"CreationTimeAfter": 1.5, "MaxResults": 100}, LIST) == {
        "CreationTimeAfter": 1.5,
        "MaxResults": 100,
    }
    assert model.parse_request(None, b"{}") == {}


@pytest.mark.parametrize(
    "uri", ["file:///data/out", "file:///a b/ü", "s3://bucket", "s3://bucket/a b"]
)
def test_folders_of_this_machine_are_places_too(uri: str) -> None:
    assert parsed({**GOOD, "OutputDataConfig": {"S3OutputPath": uri}})["OutputDataConfig"] == {
        "S3OutputPath": uri
    }


def test_instances_of_any_type() -> None:
    resources = {**GOOD["ResourceConfig"], "InstanceType": "ml.local"}
    assert parsed({**GOOD, "ResourceConfig": resources})["ResourceConfig"] == resources


@pytest.mark.parametrize(
    "changes",
    [
        {"TrainingJobName": "a/b"}, {"TrainingJobName": "-a"}, {"TrainingJobName": "a" * 64}, {"TrainingJobName": ""},
        {"TrainingJobName": "a\n"}, {"TrainingJobName": 1}, {"RoleArn": "nobody"}, {"Nonsense": 1},
        {"AlgorithmSpecification": {"TrainingInputMode": "Files"}}, {"AlgorithmSpecification": {}},
        {"OutputDataConfig": {"S3OutputPath": "ftp://x/y"}}, {"OutputDataConfig": {"S3OutputPath": "s3://b/" + "k" * 1020}},
        {"StoppingCondition": {"MaxRuntimeInSeconds": 0}}, {"StoppingCondition": {"MaxRuntimeInSeconds": 1.5}},
        {"StoppingCondition": {"MaxRuntimeInSeconds": "60"}}, {"StoppingCondition": []},
        {"HyperParameters": {"a": "x" * 2501}}, {"HyperParameters": {"k" * 257: "x"}}, {"HyperParameters": {"a": None}},
        {"HyperParameters": {f"{k}": "x" for k in range(101)}}, {"Environment": {"1a": "x"}}, {"Environment": {"a b": "x"}},
        {"InputDataConfig": [{"ChannelName": "a"}]}, {"InputDataConfig": [{"ChannelName": "a/b", "DataSource": {}}]},
        {"Tags": [{"Key": "k", "Value": "v"}] * 51}, {"Tags": [{"Key": "", "Value": "v"}]}, {"EnableManagedSpotTraining": "yes"},
        {"VpcConfig": {"SecurityGroupIds": ["sg/1"], "Subnets": ["a"]}},
    ],
    ids=lambda changes: str(changes)[:60],
)  # fmt: skip
def test_what_the_model_does_not_allow(changes: dict[str, Any]) -> None:
    assert code({**GOOD, **changes}) == "ValidationException"


@pytest.mark.parametrize("missing", ["OutputDataConfig", "RoleArn", "TrainingJobName"])
def test_what_must_be_there(missing: str) -> None:
    assert (
        code({name: value for name, value in GOOD.items() if name != missing})
        == "ValidationException"
    )


def test_numbers_out_of_range_and_of_no_size() -> None:
    assert code({"MaxResults": 0}, LIST) == "ValidationException"
    assert code({"MaxResults": 101}, LIST) == "ValidationException"
    assert code({"MaxResults": True}, LIST) == "ValidationException"
    for text in (b"NaN", b"Infinity", b"-Infinity"):
        assert code(b'{"CreationTimeAfter": ' + text + b"}", LIST) in (
            "SerializationException",
            "ValidationException",
        )


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"1", b'"x"', b"null", b"\xff", b"{'a': 1}", b"[" * 200_000]
)
def test_what_is_no_object(body: bytes) -> None:
    assert code(body) == "SerializationException"


@pytest.mark.parametrize("depth", [5, 100, 500, 900, 980, 995, 1100, 50_000])
def test_depths(depth: int) -> None:
    for body in (
        b'{"TrainingJobName":' + b"[" * depth + b"]" * depth + b"}",
        b'{"Tags":' * depth + b"1" + b"}" * depth,
    ):
        assert code(body) in ("SerializationException", "ValidationException")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*GOOD, "S3Uri", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([*GOOD, "Tags", "HyperParameters", "Environment", "InputDataConfig"]), _JSON
    )
)
def test_any_json_is_taken_or_refused(changes: dict[str, Any]) -> None:
    told: list[ApiError] = []
    found: dict[str, Any] = {}
    try:
        found = parsed({**GOOD, **changes})
    except ApiError as error:
        told.append(error)
    assert all(error.code in ("ValidationException", "SerializationException") for error in told)
    assert all(len(str(error)) < 10_000 for error in told)
    if told:
        return
    assert set(GOOD) <= set(found) | {name for name, value in changes.items() if value is None}


def test_long_values_are_told_in_short() -> None:
    with pytest.raises(ApiError) as error:
        parsed({**GOOD, "TrainingJobName": "/" * 1_000_000})
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize(
    "target",
    [
        "",
        "CreateTrainingJob",
        "SageMaker.Nothing",
        "Other.CreateTrainingJob",
        "SageMaker.",
        "SageMaker.__class__",
    ],
)
def test_operations_that_are_none(target: str) -> None:
    with pytest.raises(ApiError) as error:
        model.operation(MODEL, target)
    assert error.value.code == "UnknownOperationException"


def test_answers_are_checked_too() -> None:
    assert json.loads(model.answer(LIST, {"TrainingJobSummaries": []})) == {
        "TrainingJobSummaries": []
    }
    with pytest.raises(AssertionError, match="would answer"):
        model.answer(LIST, {"TrainingJobSummaries": "x"})
    with pytest.raises(AssertionError, match="would answer"):
        model.answer(CREATE, {})


def test_times() -> None:
    assert model.iso(0.0) == "1970-01-01T00:00:00.000Z"
    assert model.iso(1700000000.1239) == "2023-11-14T22:13:20.123Z"
