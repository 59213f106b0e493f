"""What a request asks for: command lines as SageMaker's toolkits make them, channels, distributions, limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError
from syrtos_jobs.requests.request import Distribution, Job, arguments_v2, decode, of_script, read

SOURCE = "s3://bucket/sourcedir.tar.gz"


def request(hyperparameters: Mapping[str, str] | None = None, **facts: Any) -> dict[str, Any]:
    own = {"sagemaker_program": '"train.py"', "sagemaker_submit_directory": json.dumps(SOURCE)}
    return {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "HyperParameters": {**own, **(hyperparameters or {})},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        **facts,
    }


def arguments(job: Job) -> list[str]:
    assert job.program is not None
    return list(job.program.arguments)


def from_v2(hyperparameters: Mapping[str, Any]) -> list[str]:
    """As SDK v2 sends them: each as JSON."""
    return arguments(
        read(request({name: json.dumps(value) for name, value in hyperparameters.items()}), {})
    )


def from_v3(hyperparameters: Mapping[str, Any]) -> list[str]:
    """As SDK v3 sends them: texts as they are, the rest as JSON."""
    sent = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in hyperparameters.items()
    }
    asked = {**request(), "HyperParameters": sent}
    return arguments(read(asked, {"sourcecode": {"entry_script": "train.py"}}))


# Name, value, what sagemaker-training 5.1.4 (mapping.to_cmd_args) and SDK v3 1.27 (hyperparameters_to_cli_args) make of it.
VALUES: list[tuple[str, Any, list[str], list[str]]] = [
    ("epochs", 3, ["--epochs", "3"], ["--epochs", "3"]),
    ("batch-size", 64, ["--batch-size", "64"], ["--batch-size", "64"]),
    ("rate", 0.05, ["--rate", "0.05"], ["--rate", "0.05"]),
    ("tiny", 1e-05, ["--tiny", "1e-05"], ["--tiny", "1e-05"]),
    ("n", 1, ["-n", "1"], ["--n", "1"]),
    ("name", "bob", ["--name", "bob"], ["--name", "bob"]),
    ("empty", "", ["--empty", ""], ["--empty", ""]),
    ("spaced", "a b", ["--spaced", "a b"], ["--spaced", "a b"]),
    ("quoted", 'a\'b "c" $d', ["--quoted", 'a\'b "c" $d'], ["--quoted", 'a\'b "c" $d']),
    ("line", "a\nb", ["--line", "a\nb"], ["--line", "a\nb"]),
    ("accent", "é", ["--accent", "é"], ["--accent", "é"]),
    ("flag", True, ["--flag", "True"], ["--flag", "true"]),
    ("off", False, ["--off", "False"], ["--off", "false"]),
    ("nothing", None, ["--nothing", ""], ["--nothing", "null"]),
    ("layers", [32, "x", None], ["--layers", "[32, 'x', None]"], ["--layers", '[32, "x", null]']),
    ("options", {"b": 1, "a": None, "c": [True]}, ["--options", "a=None,b=1,c=[True]"],
     ["--options", '{"b": 1, "a": null, "c": [true]}']),
    ("none", {}, ["--none", ""], ["--none", "{}"]),
    ("minus", -1, ["--minus", "-1"], ["--minus", "-1"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "v2", "v3"), VALUES)
def test_command_lines(name: str, value: Any, v2: list[str], v3: list[str]) -> None:
    assert from_v2({name: value}) == v2
    assert from_v3({name: value}) == v3


def test_numbers_as_text_stay_text_in_v2_and_do_not_in_v3() -> None:
    assert from_v2({"x": "007", "y": "1.50", "z": "true"}) == [
        "-x",
        "007",
        "-y",
        "1.50",
        "-z",
        "true",
    ]
    assert from_v3({"xx": "007", "yy": "1.50", "zz": "True"}) == [
        "--xx",
        "007",
        "--yy",
        "1.5",
        "--zz",
        "True",
    ]


def test_order() -> None:
    given_order = {"zeta": 1, "Alpha": 2, "beta": 3}
    assert from_v2(given_order) == ["--Alpha", "2", "--beta", "3", "--zeta", "1"]
    assert from_v3(given_order) == ["--zeta", "1", "--Alpha", "2", "--beta", "3"]


def test_hyperparameters_of_the_toolkit_are_not_the_scripts() -> None:
    reserved = {
        "sagemaker_region": '"x"',
        "sagemaker_anything": "1",
        "default_user_module_name": '"x"',
        "_tuning_objective_metric": '"x"',
    }
    job = read(request({**reserved, "own": "1"}), {})
    assert arguments(job) == ["--own", "1"]
    assert of_script(job.hyperparameters) == {"own": 1}
    assert job.hyperparameters["sagemaker_region"] == '"x"'


def test_a_bare_text_is_taken_as_it_is() -> None:
    job = read(
        request(
            {"sagemaker_program": "train.py", "sagemaker_submit_directory": SOURCE, "name": "bob"}
        ),
        {},
    )
    assert job.program is not None
    assert (job.program.entry, job.program.source, arguments(job)) == (
        "train.py",
        SOURCE,
        ["--name", "bob"],
    )


def test_a_model_folder_in_s3_is_the_folder_that_is_uploaded() -> None:
    assert from_v2({"model_dir": "s3://bucket/x/model"}) == ["--model_dir", "/opt/ml/model"]
    assert from_v2({"model_dir": "/opt/ml/model"}) == ["--model_dir", "/opt/ml/model"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1, max_size=6), _JSON, max_size=5))
def test_any_values_make_a_pair_each(values: dict[str, Any]) -> None:
    words = arguments_v2(values)
    assert len(words) == 2 * len(values)
    assert [word.lstrip("-") for word in words[::2]] == [
        name.lstrip("-") for name in sorted(values)
    ]
    assert all(isinstance(word, str) for word in words)


@given(_JSON)
def test_json_is_decoded_and_text_is_not(value: Any) -> None:
    assert decode(json.dumps(value)) == value
    assert decode("not json: " + json.dumps(value)) == "not json: " + json.dumps(value)


@pytest.mark.parametrize("text", ["[" * 2500, '{"a":' * 500, "-", "{", ""])
def test_text_that_looks_like_json(text: str) -> None:
    assert decode(text) == text


# -- scripts and commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../up.py", "/etc/passwd", "a/../../b.py", "", ".", ".."])
def test_a_script_is_inside_its_source(name: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a path inside"):
        read(request({"sagemaker_program": json.dumps(name)}), {})
    if name.endswith(".py"):
        with pytest.raises(ConfigurationError, match="must be a path inside"):
            read(request(), {"sourcecode": {"entry_script": name}})
    drivers = {"sourcecode": {"entry_script": "train.py", "requirements": name or "/x"}}
    with pytest.raises(ConfigurationError, match="must be a path inside"):
        read(request(), drivers)


def test_no_script_and_no_command() -> None:
    with pytest.raises(ConfigurationError, match="names no script"):
        read({**request(), "HyperParameters": {}}, {})


def test_an_entry_point_of_its_own() -> None:
    algorithm = {
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["/bin/sh", "-c"],
        "ContainerArguments": ["echo hi"],
    }
    job = read(request(AlgorithmSpecification=algorithm), {})
    assert (job.program, job.command, job.distribution.kind) == (
        None,
        ("/bin/sh", "-c", "echo hi"),
        "copies",
    )


def test_a_shell_script_is_copied_and_a_module_folder_is_kept() -> None:
    job = read(request({"sagemaker_program": '"deep/train.sh"', "x": "1"}), {})
    assert job.program is not None
    assert (job.program.entry, job.distribution.kind, job.program.folder) == (
        "deep/train.sh",
        "copies",
        "/opt/ml/code",
    )
    job = read(request(Environment={"SYRTOS_DISTRIBUTION": "none"}), {})
    assert job.distribution.kind == "copies"


def test_scripts_of_sdk_v3() -> None:
    drivers = {
        "sourcecode": {"entry_script": "train.py", "requirements": "deep/req.txt"},
        "distributed": {},
    }
    job = read({**request(), "HyperParameters": {}}, drivers)
    assert job.program is not None
    assert (job.program.folder, job.program.requirements) == (
        "/opt/ml/input/data/code",
        "deep/req.txt",
    )
    command = {
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["/bin/bash"],
        "ContainerArguments": ["-c", "x"],
    }
    for code in (
        {"command": "python train.py"},
        {"entry_script": "train.sh"},
        {"entry_script": None},
    ):
        job = read(request(AlgorithmSpecification=command), {"sourcecode": code, "distributed": {}})
        assert (job.program, job.distribution.kind) == (None, "copies")


# -- distributions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "gpus", "wanted"),
    [
        ({}, 0, Distribution("none", 1)),
        ({}, 4, Distribution("none", 1)),
        ({"sagemaker_mpi_enabled": "true"}, 0, Distribution("mpi", 1)),
        ({"sagemaker_mpi_enabled": "true"}, 4, Distribution("mpi", 4)),
        ({"sagemaker_mpi_enabled": "false"}, 0, Distribution("none", 1)),
        ({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "3"}, 4, Distribution("mpi", 3)),
        ({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": '"3"'}, 0, Distribution("mpi", 3)),
        (
            {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": '"-verbose -x A=1 -x B -x \'C=a b=c\' --x D=2"'},
            0,
            Distribution("mpi", 1, {"A": "1", "C": "a b=c"}),
        ),
        ({"sagemaker_distributed_dataparallel_enabled": "true"}, 2, Distribution("smdataparallel", 2)),
        ({"sagemaker_parameter_server_enabled": "true"}, 2, Distribution("parameter_server", 1)),
        ({"sagemaker_multi_worker_mirrored_strategy_enabled": "true"}, 2, Distribution("multi_worker_mirrored_strategy", 1)),
    ],
)  # fmt: skip
def test_distributions_of_sdk_v2(sent: dict[str, str], gpus: int, wanted: Distribution) -> None:
    job = read(request(sent), {}, gpus)
    assert job.distribution == wanted
    assert job.slots == 2 * wanted.per_host


@pytest.mark.parametrize(
    ("described", "gpus", "wanted"),
    [
        ({}, 4, Distribution("none", 1)),
        (
            {"process_count_per_node": 2, "mpi_additional_options": ["-x", "FOO=a b"]},
            0,
            Distribution("mpi", 2, {"FOO": "a b"}),
        ),
        (
            {"process_count_per_node": None, "mpi_additional_options": None},
            4,
            Distribution("mpi", 4),
        ),
        ({"process_count_per_node": None, "smp": None}, 0, Distribution("none", 1)),
        ({"process_count_per_node": 3, "smp": None}, 0, Distribution("none", 3)),
    ],
)
def test_distributions_of_sdk_v3(
    described: dict[str, Any], gpus: int, wanted: Distribution
) -> None:
    drivers = {"sourcecode": {"entry_script": "train.py"}, "distributed": described}
    assert read(request(), drivers, gpus).distribution == wanted


@pytest.mark.parametrize(
    "sent",
    [
        {"sagemaker_mpi_num_of_processes_per_host": '"many"'},
        {"sagemaker_mpi_num_of_processes_per_host": "-2"},
        {"sagemaker_mpi_num_of_processes_per_host": "[1]"},
        {"sagemaker_mpi_num_of_processes_per_host": "Infinity"},
        {"sagemaker_mpi_custom_mpi_options": '"-x \\"unclosed"'},
        {"sagemaker_submit_directory": "123"},
        {"sagemaker_submit_directory": "[]"},
    ],
)
def test_settings_that_can_not_be_are_the_users_error(sent: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        read(request({"sagemaker_mpi_enabled": "true", **sent}), {})


@pytest.mark.parametrize(
    "drivers",
    [
        {"sourcecode": [], "distributed": {}},
        {"sourcecode": {"entry_script": 3}, "distributed": {}},
        {"sourcecode": {"entry_script": "train.py"}, "distributed": []},
        {
            "sourcecode": {"entry_script": "train.py"},
            "distributed": {"process_count_per_node": "many"},
        },
        {"sourcecode": {"entry_script": "train.py"}, "distributed": {"process_count_per_node": -1}},
        {
            "sourcecode": {"entry_script": "train.py"},
            "distributed": {"mpi_additional_options": [1]},
        },
        {
            "sourcecode": {"entry_script": "train.py"},
            "distributed": {"mpi_additional_options": "-x A=1"},
        },
    ],
)
def test_drivers_that_no_sdk_writes(drivers: dict[str, Any]) -> None:
    try:
        job = read(request(), drivers)
    except ConfigurationError:
        return
    assert job.distribution.per_host >= 1


# -- instances, channels, limits ---------------------------------------------------------------------------


def test_instances() -> None:
    assert read(request(), {}).hosts == ("algo-1", "algo-2")
    groups = [
        {"InstanceGroupName": name, "InstanceType": "ml.x", "InstanceCount": count}
        for name, count in (("a", 1), ("b", 2))
    ]
    assert read(request(ResourceConfig={"InstanceGroups": groups}), {}).hosts == (
        "algo-1",
        "algo-2",
        "algo-3",
    )
    for count in (0, 65):
        with pytest.raises(ConfigurationError, match="1 to 64 instances"):
            read(request(ResourceConfig={"InstanceType": "x", "InstanceCount": count}), {})


def channel(
    name: str = "train", uri: str = "s3://bucket/data", kind: str = "S3Prefix", **facts: Any
) -> dict[str, Any]:
    return {
        "ChannelName": name,
        "DataSource": {"S3DataSource": {"S3DataType": kind, "S3Uri": uri}},
        **facts,
    }


def test_channels() -> None:
    full = channel(
        InputMode="Pipe",
        RecordWrapperType="RecordIO",
        CompressionType="Gzip",
        ContentType="a/b",
        ShuffleConfig={"Seed": 7},
    )
    full["DataSource"]["S3DataSource"] |= {
        "S3DataDistributionType": "ShardedByS3Key",
        "AttributeNames": ["a", "b"],
    }
    system = {
        "FileSystemDataSource": {
            "DirectoryPath": "/data/x",
            "FileSystemId": "fs-1",
            "FileSystemType": "EFS",
        }
    }
    asked = request(
        InputDataConfig=[full, channel("val"), {"ChannelName": "disk", "DataSource": system}]
    )
    one, two, three = read(asked, {}).channels
    assert (one.mode, one.sharded, one.record_io, one.gzip, one.seed, one.attributes) == (
        "Pipe",
        True,
        True,
        True,
        7,
        ("a", "b"),
    )
    assert one.config == {
        "TrainingInputMode": "Pipe", "S3DistributionType": "ShardedByS3Key", "RecordWrapperType": "RecordIO", "ContentType": "a/b",
    }  # fmt: skip
    assert (two.mode, two.sharded, two.record_io, two.seed) == ("File", False, False, None)
    assert two.config == {
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }
    assert (three.uri, three.kind) == ("file:///data/x", "FileSystem")


@pytest.mark.parametrize(
    "channels",
    [
        [channel(uri="http://169.254.169.254/latest")],
        [channel(uri="https://bucket.s3.amazonaws.com/x")],
        [channel(kind="AugmentedManifestFile")],
        [{"ChannelName": "x", "DataSource": {}}],
        [{"ChannelName": "x", "DataSource": {"DatasetSource": {"DatasetArn": "arn"}}}],
        [channel("..")],
        [channel(".")],
        [channel(), channel()],
    ],
)
def test_channels_that_can_not_be(channels: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigurationError):
        read(request(InputDataConfig=channels), {})


def test_limits_and_the_rest() -> None:
    job = read(request(), {})
    assert (
        job.limits.running,
        job.limits.waiting,
        job.limits.pending,
        job.spot,
        job.checkpoints,
    ) == (
        86400,
        None,
        None,
        False,
        None,
    )
    stop = {"MaxRuntimeInSeconds": 5, "MaxWaitTimeInSeconds": 9, "MaxPendingTimeInSeconds": 7200}
    checkpoints = {"S3Uri": "s3://bucket/kept/", "LocalPath": "/opt/ml/kept"}
    job = read(
        request(
            StoppingCondition=stop, EnableManagedSpotTraining=True, CheckpointConfig=checkpoints
        ),
        {},
    )
    assert (job.limits.running, job.limits.waiting, job.limits.pending, job.spot) == (
        5,
        9,
        7200,
        True,
    )
    assert job.checkpoints == ("s3://bucket/kept", "/opt/ml/kept")
    assert job.artifacts == "s3://bucket/out/job/output"


@pytest.mark.parametrize("part", ["AlgorithmSpecification", "ResourceConfig"])
def test_parts_that_only_other_jobs_can_do_without(part: str) -> None:
    """SageMaker's model does not ask for them."""
    with pytest.raises(ConfigurationError):
        read({name: value for name, value in request().items() if name != part}, {})


# -- what is said, and what a job brings itself ------------------------------------------------------------

SYRTOS = {"engine": "syrtos", "workers_per_host": 3, "options": []}


def of_v3(distributed: Mapping[str, Any], entry: str = "train.py", **facts: Any) -> Job:
    """As SDK v3 sends it: a command that starts the drivers of a channel."""
    algorithm = {
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["/bin/bash"],
        "ContainerArguments": ["sm_train.sh"],
    }
    drivers = {"sourcecode": {"entry_script": entry}, "distributed": distributed}
    return read(request(AlgorithmSpecification=algorithm, **facts), drivers)


def test_a_job_that_brings_our_driver_runs_it() -> None:
    job = of_v3(SYRTOS)
    assert job.program is not None
    assert job.program.driven
    assert job.distribution == Distribution("copies", 3)
    assert (job.distribution.processes, job.slots) == (1, 6)
    assert job.unconnected == ""


@pytest.mark.parametrize("distributed", [{}, {"process_count_per_node": 2, "smp": None}])
def test_other_drivers_are_replaced_by_a_world(distributed: Mapping[str, Any]) -> None:
    job = of_v3(distributed)
    assert job.program is not None
    assert not job.program.driven
    assert job.distribution.kind == "none"


def test_copies_that_make_no_world_are_known() -> None:
    assert read(request({"sagemaker_program": '"train.sh"'}), {}).unconnected == "train.sh"
    assert of_v3({}, "train.sh").unconnected == "/bin/bash sm_train.sh"
    assert read(request(), {}).unconnected == ""
    assert read(request(Environment={"SYRTOS_DISTRIBUTION": "none"}), {}).unconnected == ""
    alone = {"InstanceType": "ml.x", "InstanceCount": 1, "VolumeSizeInGB": 1}
    assert (
        read(request({"sagemaker_program": '"train.sh"'}, ResourceConfig=alone), {}).unconnected
        == ""
    )


def test_tensorboards_files_go_where_the_sdk_looks_for_them() -> None:
    """estimator.latest_job_tensorboard_artifacts_path of SDK v2."""
    assert read(request(), {}).tensorboard is None
    found = read(request(TensorBoardOutputConfig={"S3OutputPath": "s3://b/tb/"}), {}).tensorboard
    assert found == ("s3://b/tb/job/tensorboard-output", "/opt/ml/output/tensorboard")
    asked = {"S3OutputPath": "s3://b/tb", "LocalPath": "/tmp/tb/"}
    assert read(request(TensorBoardOutputConfig=asked), {}).tensorboard == (
        "s3://b/tb/job/tensorboard-output",
        "/tmp/tb",
    )


@pytest.mark.parametrize("part", ["HyperParameters", "Environment"])
@pytest.mark.parametrize("value", ["a\0b", "a\ud800b"])
def test_what_no_command_line_can_hold_is_refused(part: str, value: str) -> None:
    given = request()
    given[part] = {**given.get(part, {}), "name": value}
    with pytest.raises(ConfigurationError, match=f"{part}: 'name' has a character"):
        read(given, {})
