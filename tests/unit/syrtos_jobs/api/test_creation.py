"""`syrtos.Estimator`: each argument, as the request says it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from syrtos.errors import ConfigurationError, DataError
from syrtos_jobs.api import creation
from syrtos_jobs.api.service import Service
from syrtos_jobs.client.estimator import Estimator
from syrtos_jobs.http import model
from syrtos_jobs.requests.request import read
from syrtos_jobs.storage.objects import FolderStore
from syrtos_jobs.storage.storage_uris import StorageURIs
from syrtos_jobs.store.home import BUCKET, Home
from syrtos_jobs.store.job_store import Store

SHAPE: Any = model.service_model("sagemaker").operation_model("CreateTrainingJob").input_shape


@pytest.fixture
def service(tmp_path: Path) -> Service:
    home = Home(tmp_path / "home")
    return Service(home, Store(home.database), StorageURIs(FolderStore(home.objects)), 8)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "train.py").write_text("print('training')\n")
    (folder / "deep" / "other.py").write_text("")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("")
    return folder / "train.py"


def created(
    service: Service,
    script: Path,
    inputs: Any = None,
    job_name: str | None = "my-job",
    **facts: Any,
) -> dict[str, Any]:
    """The request that a service gets; it is one that the API would take."""
    estimator = Estimator(facts.pop("entry_point", script), home=service.home.path, **facts)
    name = estimator.create(service, inputs, job_name)
    assert estimator.latest_training_job == name
    record = service.store.get(name)
    assert record is not None
    assert model.parse_request(SHAPE, json.dumps(record.request).encode()) == record.request
    return record.request


def test_without_arguments(service: Service, script: Path) -> None:
    request = created(service, script)
    assert request["TrainingJobName"] == "my-job"
    assert request["HyperParameters"] == {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": f'"s3://{BUCKET}/my-job/source/sourcedir.tar.gz"',
    }
    assert request["AlgorithmSpecification"]["TrainingInputMode"] == "File"
    assert request["OutputDataConfig"] == {"S3OutputPath": f"s3://{BUCKET}/"}
    assert request["ResourceConfig"] == {
        "InstanceType": "ml.local",
        "InstanceCount": 1,
        "VolumeSizeInGB": 30,
    }
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400}
    assert request["EnableManagedSpotTraining"] is False
    for name in ("InputDataConfig", "CheckpointConfig", "Tags", "Environment"):
        assert not request.get(name)


@pytest.mark.parametrize(
    ("facts", "path", "wanted"),
    [
        ({"instance_count": 3}, ("ResourceConfig", "InstanceCount"), 3),
        ({"instance_type": "ml.p3.2xlarge"}, ("ResourceConfig", "InstanceType"), "ml.p3.2xlarge"),
        ({"environment": {"A": "1", "B": 2}}, ("Environment",), {"A": "1", "B": "2"}),
        ({"max_run": 60}, ("StoppingCondition",), {"MaxRuntimeInSeconds": 60}),
        ({"use_spot_instances": True}, ("StoppingCondition", "MaxWaitTimeInSeconds"), 86400),
        ({"use_spot_instances": True, "max_wait": 90_000}, ("StoppingCondition", "MaxWaitTimeInSeconds"), 90_000),
        ({"use_spot_instances": True}, ("EnableManagedSpotTraining",), True),
        ({"input_mode": "Pipe"}, ("AlgorithmSpecification", "TrainingInputMode"), "Pipe"),
        ({"metric_definitions": [{"Name": "a", "Regex": "a=(.)"}]}, ("AlgorithmSpecification", "MetricDefinitions"), [{"Name": "a", "Regex": "a=(.)"}]),
        ({"tags": [{"Key": "k", "Value": "v"}]}, ("Tags",), [{"Key": "k", "Value": "v"}]),
        ({"role": "arn:aws:iam::111111111111:role/mine"}, ("RoleArn",), "arn:aws:iam::111111111111:role/mine"),
        ({"image_uri": "mine:1"}, ("AlgorithmSpecification", "TrainingImage"), "mine:1"),
        ({"framework_version": "2.13", "py_version": "py310"}, ("AlgorithmSpecification", "TrainingImage"), "tensorflow-training:2.13-cpu-py310"),
        ({"output_path": "s3://mine/out"}, ("OutputDataConfig", "S3OutputPath"), "s3://mine/out"),
        ({"checkpoint_s3_uri": "s3://mine/kept"}, ("CheckpointConfig",), {"S3Uri": "s3://mine/kept"}),
        (
            {"checkpoint_s3_uri": "s3://mine/kept", "checkpoint_local_path": "/opt/ml/kept"},
            ("CheckpointConfig",),
            {"S3Uri": "s3://mine/kept", "LocalPath": "/opt/ml/kept"},
        ),
        ({"hyperparameters": {"n": 1, "s": "x", "t": "007"}}, ("HyperParameters", "t"), '"007"'),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_each_argument(
    service: Service, script: Path, facts: dict[str, Any], path: tuple[str, ...], wanted: Any
) -> None:
    found: Any = created(service, script, **facts)
    for part in path:
        found = found[part]
    assert found == wanted


def test_folders_of_this_machine(
    service: Service, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").touch()
    request = created(service, script, "data", output_path="out", checkpoint_s3_uri="kept")
    assert request["OutputDataConfig"]["S3OutputPath"] == (tmp_path / "out").as_uri()
    assert request["CheckpointConfig"]["S3Uri"] == (tmp_path / "kept").as_uri()
    (channel,) = request["InputDataConfig"]
    assert channel == {
        "ChannelName": "training",
        "DataSource": {"S3DataSource": {
            "S3DataType": "S3Prefix", "S3Uri": (tmp_path / "data").as_uri(), "S3DataDistributionType": "FullyReplicated"}},
    }  # fmt: skip


def test_channels_with_all_their_facts(service: Service, script: Path) -> None:
    facts = {
        "uri": "s3://bucket/p", "distribution": "ShardedByS3Key", "input_mode": "Pipe", "content_type": "a/b", "shuffle_seed": 0,
        "record_wrapping": "RecordIO", "compression": "Gzip", "s3_data_type": "ManifestFile",
    }  # fmt: skip
    one, two = created(service, script, {"a": facts, "b": "s3://bucket/q"})["InputDataConfig"]
    assert one["DataSource"]["S3DataSource"] == {
        "S3DataType": "ManifestFile", "S3Uri": "s3://bucket/p", "S3DataDistributionType": "ShardedByS3Key",
    }  # fmt: skip
    rest = {name: value for name, value in one.items() if name not in ("ChannelName", "DataSource")}
    assert rest == {
        "InputMode": "Pipe", "ContentType": "a/b", "RecordWrapperType": "RecordIO", "CompressionType": "Gzip", "ShuffleConfig": {"Seed": 0},
    }  # fmt: skip
    assert (two["ChannelName"], two["DataSource"]["S3DataSource"]["S3Uri"]) == (
        "b",
        "s3://bucket/q",
    )
    for wrong in ({"uri": "s3://bucket/p", "mode": "Pipe"}, {"input_mode": "Pipe"}):
        with pytest.raises(ConfigurationError, match="The channel x is a path or URI"):
            created(service, script, {"x": wrong}, "another")


# What sagemaker 2.257 (estimator._distribution_configuration) makes of them.
@pytest.mark.parametrize(
    ("distribution", "wanted"),
    [
        ({"mpi": {"enabled": True}}, {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": '""'}),
        (
            {"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-x A=1"}},
            {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2", "sagemaker_mpi_custom_mpi_options": '"-x A=1"'},
        ),
        (
            {"smdistributed": {"dataparallel": {"enabled": True}}},
            {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_distributed_dataparallel_custom_mpi_options": '""'},
        ),
        ({"parameter_server": {"enabled": True}}, {"sagemaker_parameter_server_enabled": "true"}),
        ({"multi_worker_mirrored_strategy": {"enabled": True}}, {"sagemaker_multi_worker_mirrored_strategy_enabled": "true"}),
        ({}, {}),
    ],
)  # fmt: skip
def test_distributions(
    service: Service, script: Path, distribution: dict[str, Any], wanted: dict[str, str]
) -> None:
    request = created(service, script, distribution=distribution)
    usual = ("sagemaker_program", "sagemaker_submit_directory")
    assert {k: v for k, v in request["HyperParameters"].items() if k not in usual} == wanted
    kinds = {"mpi": "mpi", "smdistributed": "smdataparallel", None: "none"}
    kind = next(iter(distribution), None)
    assert read(request, {}).distribution.kind == kinds.get(kind, kind)


def test_distributions_that_are_none() -> None:
    with pytest.raises(ConfigurationError, match="`distribution` can be"):
        creation._distribution({"horovod": {}})


def packed(service: Service, request: dict[str, Any], tmp_path: Path) -> list[str]:
    uri = json.loads(request["HyperParameters"]["sagemaker_submit_directory"])
    (source,) = service.places.under(uri)
    source.fetch(tmp_path / "fetched.tar.gz")
    with tarfile.open(tmp_path / "fetched.tar.gz") as tar:
        return sorted(member.name for member in tar.getmembers() if member.isfile())


def test_a_script_alone(service: Service, script: Path, tmp_path: Path) -> None:
    assert packed(service, created(service, script), tmp_path) == ["train.py"]


def test_a_folder_and_what_it_needs(service: Service, script: Path, tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "x.py").write_text("")
    request = created(
        service,
        script,
        entry_point="train.py",
        source_dir=script.parent,
        dependencies=[tmp_path / "library"],
    )
    assert packed(service, request, tmp_path) == ["deep/other.py", "library/x.py", "train.py"]
    assert request["HyperParameters"]["sagemaker_program"] == '"train.py"'


@pytest.mark.parametrize("entry", ["missing.py", "../outside.py"])
def test_scripts_that_are_not_there(service: Service, script: Path, entry: str) -> None:
    (script.parent.parent / "outside.py").write_text("")
    with pytest.raises((ConfigurationError, DataError)):
        created(service, script, entry_point=entry, source_dir=script.parent)
    with pytest.raises(ConfigurationError, match="no source folder"):
        created(service, script, entry_point=entry, source_dir=script.parent / "none")
    with pytest.raises(ConfigurationError, match="needs a `repo`"):
        created(service, script, git_config={"repo": "--upload-pack=touch /tmp/x"})


@pytest.mark.parametrize("name", ["../outside", "a/b", "..", "a" * 64, "a b", "-a", "a\n"])
def test_names_that_no_job_may_have(
    service: Service, script: Path, tmp_path: Path, name: str
) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigurationError):
        Estimator(script, home=service.home.path).create(service, None, name)
    assert sorted(tmp_path.iterdir()) == before
    assert not service.home.jobs.exists() or list(service.home.jobs.iterdir()) == []


def test_names_are_made_of_the_scripts(service: Service, script: Path) -> None:
    names = {Estimator(script, home=service.home.path).create(service) for _ in range(3)}
    assert all(name.startswith("train-2") for name in names)
    odd = script.with_name("my_script..v2 ü" + "x" * 60 + ".py")
    odd.write_text("")
    for facts in ({"entry_point": odd}, {"base_job_name": "mine"}):
        created(service, script, None, None, **facts)


def test_a_name_is_taken_once(service: Service, script: Path) -> None:
    created(service, script)
    with pytest.raises(ConfigurationError, match="there is a job"):
        created(service, script)


def test_before_there_is_a_job(service: Service, script: Path) -> None:
    estimator = Estimator(script, home=service.home.path)
    for ask in (estimator.describe, estimator.stop, lambda: estimator.model_data):
        with pytest.raises(ConfigurationError, match="There is no job yet"):
            ask()
