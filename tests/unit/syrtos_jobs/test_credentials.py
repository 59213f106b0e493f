"""Keys: the owner's, and those of a script, which open its own job's places for as long as it runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from syrtos_jobs.credentials import Caller, caller_of, job_secret, new_access_key
from syrtos_jobs.requests import states
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Record, Store


def record(**facts: Any) -> Record:
    def source(uri: str) -> dict[str, Any]:
        return {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}

    request = {
        "TrainingJobName": "job",
        "HyperParameters": {
            "sagemaker_submit_directory": '"s3://code/job/source/sourcedir.tar.gz"'
        },
        "InputDataConfig": [
            {"ChannelName": "train", "DataSource": source("s3://data/train/")},
            {"ChannelName": "local", "DataSource": source("file:///data")},
            {
                "ChannelName": "disk",
                "DataSource": {"FileSystemDataSource": {"DirectoryPath": "/x"}},
            },
        ],
        "OutputDataConfig": {"S3OutputPath": "s3://out/models/"},
        "CheckpointConfig": {"S3Uri": "s3://out/kept/job"},
        **facts,
    }
    return Record(
        name="job", request=request, tags={}, state=states.initial_state(1.0), created=1.0, modified=1.0, slots=1, spot=False,
        access_key=new_access_key(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bucket", "key", "read", "write"),
    [
        ("data", "train/x", True, False),
        ("data", "train/deep/x", True, False),
        ("data", "train", False, False),
        ("data", "training/x", False, False),
        ("data", "other", False, False),
        ("data", "", False, False),
        ("train", "x", False, False),
        ("code", "job/source/sourcedir.tar.gz", True, False),
        ("code", "job/source/", False, False),
        ("code", "another/source/sourcedir.tar.gz", False, False),
        ("out", "models/job/output/model.tar.gz", True, True),
        ("out", "models/job/anything", True, True),
        ("out", "models/job2/output/model.tar.gz", False, False),
        ("out", "models/another/output/model.tar.gz", False, False),
        ("out", "models/", False, False),
        ("out", "kept/job/checkpoint", True, True),
        ("out", "kept/job2/checkpoint", False, False),
        ("out", "kept/another", False, False),
        ("", "", False, False),
    ],
)
def test_what_a_script_may_do(bucket: str, key: str, read: bool, write: bool) -> None:
    caller = Caller("secret", record())
    assert (caller.may_read(bucket, key), caller.may_write(bucket, key)) == (read, write)
    owner = Caller("secret", None)
    assert (owner.may_read(bucket, key), owner.may_write(bucket, key)) == (True, True)


def test_without_checkpoints_and_channels_and_output_in_s3() -> None:
    bare = record(
        InputDataConfig=[],
        CheckpointConfig=None,
        OutputDataConfig={"S3OutputPath": "file:///out"},
        HyperParameters={},
    )
    caller = Caller("secret", bare)
    for bucket in ("", "data", "out", "code", "file:"):
        assert not caller.may_read(bucket, "x")
        assert not caller.may_write(bucket, "x")


def test_keys_of_a_job_end_with_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    store = Store(home.database)
    found = record()
    store.add(found)
    caller = caller_of(home, store, found.access_key)
    assert caller == Caller(job_secret(home, found.access_key), found)
    assert caller is not None
    assert caller.arn.endswith("assumed-role/syrtos/job")
    for step in ("Downloading", "Training", "Uploading"):
        store.change("job", lambda r, step=step: r.with_transition(step))
        assert caller_of(home, store, found.access_key) is not None
    store.change("job", lambda r: r.with_transition("Completed"))
    assert caller_of(home, store, found.access_key) is None
    store.remove("job")
    assert caller_of(home, store, found.access_key) is None


def test_the_owner_and_nobody(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    store = Store(home.database)
    access, secret = home.keys()
    assert caller_of(home, store, access) == Caller(secret, None)
    for wrong in (
        "",
        access + "x",
        access[:-1],
        access.lower(),
        "SYRJ0000000000000000",
        "SYRJ%",
        "é",
    ):
        assert caller_of(home, store, wrong) is None
    again = Home(tmp_path / "home")
    assert again.keys() == (access, secret)
    assert Home(tmp_path / "other").keys() != (access, secret)


def test_secrets_of_jobs_differ_and_are_written_nowhere(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    one, two = new_access_key(), new_access_key()
    assert one != two
    assert job_secret(home, one) != job_secret(home, two)
    assert job_secret(home, one) == job_secret(home, one)
    assert job_secret(Home(tmp_path / "other"), one) != job_secret(home, one)
    store = Store(home.database)
    store.add(dataclasses.replace(record(), access_key=one))
    wanted = job_secret(home, one).encode()
    assert not any(wanted in path.read_bytes() for path in home.path.rglob("*") if path.is_file())
