"""What scripts find on an instance, as SageMaker's containers have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from syrtos_jobs.requests.request import Job, read
from syrtos_jobs.runner import contract
from syrtos_jobs.runner.contract import InstanceFacts


def job(hyperparameters: Mapping[str, str] | None = None, instances: int = 2, **facts: Any) -> Job:
    own = {
        "sagemaker_program": '"deep/train.py"',
        "sagemaker_submit_directory": '"s3://bucket/sourcedir.tar.gz"',
    }
    channels = [
        {
            "ChannelName": name,
            "DataSource": {
                "S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://bucket/{name}"}
            },
        }
        for name in ("train", "my-val.1")
    ]
    asked = {
        "TrainingJobName": "my-job",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "HyperParameters": {**own, **(hyperparameters or {})},
        "InputDataConfig": channels,
        "ResourceConfig": {
            "InstanceType": "ml.m5.large",
            "InstanceCount": instances,
            "VolumeSizeInGB": 1,
        },
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        **facts,
    }
    return read(asked, {})


def place(found: Job, root: str = "/opt/ml") -> InstanceFacts:
    return InstanceFacts(root, found.hosts, 4, 0)


def environment(found: Job, host: int = 0, root: str = "/opt/ml") -> dict[str, str]:
    return contract.environment(found, host, place(found, root))


def test_folders_and_names() -> None:
    seen = environment(job(), 1)
    wanted = {
        "SM_MODEL_DIR": "/opt/ml/model",
        "SM_INPUT_DIR": "/opt/ml/input",
        "SM_INPUT_CONFIG_DIR": "/opt/ml/input/config",
        "SM_OUTPUT_DIR": "/opt/ml/output",
        "SM_OUTPUT_DATA_DIR": "/opt/ml/output/data",
        "SM_OUTPUT_INTERMEDIATE_DIR": "/opt/ml/output/intermediate",
        "SM_CHANNEL_TRAIN": "/opt/ml/input/data/train",
        "SM_CHANNEL_MY-VAL.1": "/opt/ml/input/data/my-val.1",
        "SM_CHANNEL_MY_VAL_1": "/opt/ml/input/data/my-val.1",
        "SM_CHANNELS": '["my-val.1","train"]',
        "SM_HOSTS": '["algo-1","algo-2"]',
        "SM_CURRENT_HOST": "algo-2",
        "SM_CURRENT_HOST_RANK": "1",
        "SM_HOST_COUNT": "2",
        "SM_MASTER_ADDR": "algo-1",
        "SM_MASTER_PORT": "7777",
        "SM_NUM_CPUS": "4",
        "SM_NUM_GPUS": "0",
        "SM_NUM_NEURONS": "0",
        "SM_USER_ENTRY_POINT": "deep/train.py",
        "SM_MODULE_NAME": "deep/train",
        "SM_MODULE_DIR": "s3://bucket/sourcedir.tar.gz",
        "SM_NETWORK_INTERFACE_NAME": "lo",
        "SM_LOG_LEVEL": "20",
        "SM_FRAMEWORK_MODULE": "",
        "SM_CURRENT_INSTANCE_TYPE": "ml.m5.large",
        "SM_CURRENT_INSTANCE_GROUP": "homogeneousCluster",
        "SM_IS_HETERO": "false",
        "TRAINING_JOB_NAME": "my-job",
        "SAGEMAKER_JOB_NAME": "my-job",
        "CURRENT_HOST": "algo-2",
        "PYTHONUNBUFFERED": "1",
    }
    assert {name: seen.get(name) for name in wanted} == wanted
    assert "SAGEMAKER_BASE_DIR" not in seen
    assert not any(name.startswith("AWS_") for name in seen)


def test_another_root() -> None:
    seen = environment(job(), 0, "/home/me/ml")
    assert seen["SM_MODEL_DIR"] == "/home/me/ml/model"
    assert seen["SM_CHANNEL_TRAIN"] == "/home/me/ml/input/data/train"
    assert seen["SAGEMAKER_BASE_DIR"] == "/home/me/ml"
    found = InstanceFacts("/home/me/ml", (), 1, 0)
    inside = {
        path: found.instance_path(path)
        for path in ("/opt/ml", "/opt/ml/model", "/opt/mlx", "/opt", "text")
    }
    assert inside == {
        "/opt/ml": "/home/me/ml", "/opt/ml/model": "/home/me/ml/model", "/opt/mlx": "/opt/mlx", "/opt": "/opt", "text": "text",
    }  # fmt: skip


VALUES: list[tuple[Any, str]] = [
    (3, "3"),
    (0.05, "0.05"),
    ("bob", "bob"),
    ("", ""),
    ("a \"b\" 'c'", "a \"b\" 'c'"),
    ("é", "é"),
    (True, "true"),
    (None, ""),
    ([1, "x", None], '[1,"x",null]'),
    ({"b": 1, "a": {"é": None}}, '{"a":{"\\u00e9":null},"b":1}'),
]


@pytest.mark.parametrize(("value", "wanted"), VALUES)
def test_hyperparameters_as_variables(value: Any, wanted: str) -> None:
    """Expected texts are of sagemaker-training 5.1.4 (mapping.to_env_vars)."""
    seen = environment(job({"my-value": json.dumps(value)}))
    assert seen["SM_HP_MY-VALUE"] == seen["SM_HP_MY_VALUE"] == wanted
    assert json.loads(seen["SM_HPS"]) == {"my-value": value}
    assert json.loads(seen["SM_TRAINING_ENV"])["hyperparameters"] == {"my-value": value}


def test_a_name_with_underscores_is_not_taken_by_one_with_hyphens() -> None:
    for order in (("my-value", "my_value"), ("my_value", "my-value")):
        seen = environment(job({name: json.dumps(name) for name in order}))
        assert (seen["SM_HP_MY_VALUE"], seen["SM_HP_MY-VALUE"]) == ("my_value", "my-value")


def test_user_arguments() -> None:
    seen = environment(job({"b": "2", "name": '"x y"'}))
    assert seen["SM_USER_ARGS"] == '["-b","2","--name","x y"]'
    facts = json.loads(seen["SM_TRAINING_ENV"])
    assert facts["user_args"] == ["-b", "2", "--name", "x y"]
    assert (facts["job_name"], facts["is_master"], facts["master_hostname"]) == (
        "my-job",
        True,
        "algo-1",
    )


def test_files() -> None:
    found = job({"x": "1"})
    files = contract.files(found, 1, place(found))
    assert files["hyperparameters.json"] == {**found.hyperparameters}
    assert files["resourceconfig.json"] == {
        "current_host": "algo-2",
        "current_instance_type": "ml.m5.large",
        "current_group_name": "homogeneousCluster",
        "hosts": ["algo-1", "algo-2"],
        "instance_groups": [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": "ml.m5.large",
                "hosts": ["algo-1", "algo-2"],
            }
        ],
        "network_interface_name": "lo",
    }
    usual = {
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }
    assert files["inputdataconfig.json"] == {"train": usual, "my-val.1": usual}
    assert json.loads(json.dumps(files)) == files


def test_instance_groups() -> None:
    groups = [
        {"InstanceGroupName": name, "InstanceType": f"ml.{name}", "InstanceCount": count}
        for name, count in (("a", 1), ("b", 2))
    ]
    found = job(ResourceConfig={"InstanceGroups": groups, "VolumeSizeInGB": 1})
    facts = [contract.files(found, host, place(found))["resourceconfig.json"] for host in range(3)]
    assert [one["current_group_name"] for one in facts] == ["a", "b", "b"]
    assert [one["current_instance_type"] for one in facts] == ["ml.a", "ml.b", "ml.b"]
    assert [one["hosts"] for one in facts[0]["instance_groups"]] == [
        ["algo-1"],
        ["algo-2", "algo-3"],
    ]
    seen = environment(found, 2)
    assert seen["SM_CURRENT_INSTANCE_GROUP"] == "b"
    assert seen["SM_CURRENT_INSTANCE_GROUP_HOSTS"] == '["algo-2","algo-3"]'
    assert seen["SM_INSTANCE_GROUPS"] == '["a","b"]'
    assert seen["SM_IS_HETERO"] == "true"
    assert json.loads(seen["SM_INSTANCE_GROUPS_DICT"])["a"]["hosts"] == ["algo-1"]


def tf_config(kind: str, host: int, instances: int = 3) -> dict[str, Any] | None:
    found = job({f"sagemaker_{kind}_enabled": "true"} if kind else {}, instances)
    text = environment(found, host).get("TF_CONFIG")
    return json.loads(text) if text else None


def test_tf_config_of_parameter_servers() -> None:
    cluster = {
        "master": ["algo-1:2222"],
        "worker": ["algo-2:2222", "algo-3:2222"],
        "ps": ["algo-1:2223", "algo-2:2223", "algo-3:2223"],
    }
    tasks = [
        {"type": "master", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]
    for host, task in enumerate(tasks):
        assert tf_config("parameter_server", host) == {
            "cluster": cluster,
            "environment": "cloud",
            "task": task,
        }


def test_tf_config_of_mirrored_workers() -> None:
    cluster = {"worker": ["algo-1:8890", "algo-2:8890", "algo-3:8890"]}
    for host in range(3):
        wanted = {
            "cluster": cluster,
            "environment": "cloud",
            "task": {"type": "worker", "index": host},
        }
        assert tf_config("multi_worker_mirrored_strategy", host) == wanted


@pytest.mark.parametrize(
    ("kind", "instances"),
    [("", 3), ("mpi", 3), ("parameter_server", 1), ("multi_worker_mirrored_strategy", 1)],
)
def test_no_tf_config(kind: str, instances: int) -> None:
    assert tf_config(kind, 0, instances) is None


def test_variables_of_the_request_and_of_mpi_options() -> None:
    options = {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_custom_mpi_options": '"-x A=1 -x B=2 --verbose"',
    }
    seen = environment(
        job(options, Environment={"B": "mine", "SM_MODEL_DIR": "/elsewhere", "C": "a\nb"})
    )
    assert (seen["A"], seen["B"], seen["C"], seen["SM_MODEL_DIR"]) == (
        "1",
        "mine",
        "a\nb",
        "/elsewhere",
    )


@pytest.mark.parametrize(
    "name", ["PMI_RANK", "PMI_SIZE", "HYDRA_HOST_FILE", "SYRTOS_OPTIONS", "SYRTOS_JOB"]
)
def test_variables_that_hold_a_job_together_can_not_be_set(name: str) -> None:
    """SYRTOS_JOB is the mark by which a job's processes are found and ended."""
    assert name not in environment(job(Environment={name: "1"}))
    sent = {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_custom_mpi_options": json.dumps(f"-x {name}=1"),
    }
    assert name not in environment(job(sent))
