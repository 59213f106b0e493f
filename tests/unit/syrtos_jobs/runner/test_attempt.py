"""One attempt at a job, and what can come between."""

from __future__ import annotations

import dataclasses
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syrtos.errors import ConfigurationError
from syrtos_jobs.credentials import new_access_key
from syrtos_jobs.http.server import Server
from syrtos_jobs.observation import logs
from syrtos_jobs.requests import states
from syrtos_jobs.runner import attempt
from syrtos_jobs.runner.attempt import Runner
from syrtos_jobs.runner.time_limit import TimeLimit
from syrtos_jobs.runner.watch import Watch
from syrtos_jobs.storage.storage_uris import StorageURIs
from syrtos_jobs.store.home import Home, try_lock
from syrtos_jobs.store.job_store import Record, Store


def record(name: str, script: str = "true", **facts: Any) -> Record:
    algorithm = {"TrainingInputMode": "File", "ContainerEntrypoint": ["/bin/sh", "-c", script]}
    request = {
        "TrainingJobName": name,
        "AlgorithmSpecification": algorithm,
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.x", "InstanceCount": 1, "VolumeSizeInGB": 1},
        **facts,
    }
    now = time.time()
    return Record(
        name=name, request=request, tags={}, state=states.initial_state(now), created=now, modified=now, slots=1, spot=False,
        access_key=new_access_key(), attempts=1,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def prepared(home: Home, found: Record) -> tuple[Store, Runner]:
    store = Store(home.database)
    store.add(found)
    logs.make(home.job(found.name) / "logs", ["algo-1"], found.created)
    return store, Runner(home, store, found.name)


def end_of(store: Store, name: str) -> Record:
    found = store.get(name)
    assert found is not None
    return found


def test_a_job_that_is_stopped_before_its_runner_begins(home: Home) -> None:
    store, attempt = prepared(home, record("early"))
    store.change("early", lambda r: r.with_transition("Stopping"))
    attempt.run()
    found = end_of(store, "early")
    assert (found.state.secondary, found.failure) == ("Stopped", "")


def test_a_job_that_is_stopped_just_before_it_trains(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, attempt = prepared(home, record("later"))
    monkeypatch.setattr(
        attempt,
        "_say_notices",
        lambda: store.change("later", lambda r: r.with_transition("Stopping")),
    )
    attempt.run()
    found = end_of(store, "later")
    assert (found.state.secondary, found.failure) == ("Stopped", "")


def test_a_runner_that_a_restarted_service_has_not_seen_leaves_the_job_to_the_next(
    home: Home,
) -> None:
    store, attempt = prepared(home, record("again"))
    store.change("again", lambda r: r.with_end("Restarting"))
    attempt.run()
    found = end_of(store, "again")
    assert (found.state.secondary, found.state.status) == ("Restarting", "InProgress")


def test_what_is_missing_is_the_users_error(home: Home) -> None:
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/none/"}}
    store, attempt = prepared(
        home, record("missing", InputDataConfig=[{"ChannelName": "train", "DataSource": source}])
    )
    attempt.run()
    found = end_of(store, "missing")
    assert found.state.status == "Failed"
    assert found.failure.startswith("ClientError: There is nothing under s3://bucket/none/")


def test_a_job_that_was_deleted_is_left_alone(home: Home) -> None:
    store, attempt = prepared(home, record("gone"))
    store.remove("gone")
    attempt.run()
    assert store.get("gone") is None


@pytest.fixture
def server(home: Home) -> Iterator[Server]:
    found = Server(home, capacity=1)
    found.start()
    yield found
    found.close()


@pytest.mark.parametrize("names", [("train", "train_x"), ("train_x", "train")])
@pytest.mark.parametrize("mode", ["File", "Pipe"])
def test_pipes_beside_channels_of_similar_names(
    server: Server, tmp_path: Path, names: tuple[str, str], mode: str
) -> None:
    (tmp_path / "data").write_text("content")
    server.service.places.upload(tmp_path / "data", "s3://bucket/data/one")
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data/"}}
    channels = [
        {
            "ChannelName": name,
            "DataSource": source,
            "InputMode": "Pipe" if name == "train" else mode,
        }
        for name in names
    ]
    other = "train_x_0" if mode == "Pipe" else "train_x/one"
    script = f'cd "${{SM_INPUT_DATA_DIR}}" && timeout 5 cat train_0 && timeout 5 cat {other} && echo " read"'
    request = record("piped", script, InputDataConfig=channels).request
    server.service.create_training_job({**request, "RoleArn": "arn:aws:iam::000000000000:role/x"})
    deadline = time.monotonic() + 30
    while not end_of(server.service.store, "piped").state.final and time.monotonic() < deadline:
        time.sleep(0.05)
    found = end_of(server.service.store, "piped")
    assert found.state.status == "Completed", found.failure
    (stream,) = logs.of(server.service.home.job("piped") / "logs")
    assert [event.text for event in stream.all()] == ["contentcontent read"]


def test_copies_and_what_has_no_effect_are_said_and_files_of_tensorboard_reach_their_uri(
    server: Server,
) -> None:
    script = "mkdir -p $SM_OUTPUT_DIR/tensorboard/train && echo event > $SM_OUTPUT_DIR/tensorboard/train/$SM_CURRENT_HOST"
    resources = {"InstanceType": "ml.x", "InstanceCount": 2, "VolumeSizeInGB": 1}
    more = {
        "TensorBoardOutputConfig": {"S3OutputPath": "s3://bucket/tb"},
        "ProfilerConfig": {"S3OutputPath": "s3://x/y"},
    }
    request = record("copies", script, ResourceConfig=resources, **more).request
    server.service.capacity = 2
    server.service.create_training_job({**request, "RoleArn": "arn:aws:iam::000000000000:role/x"})
    deadline = time.monotonic() + 30
    while not end_of(server.service.store, "copies").state.final and time.monotonic() < deadline:
        time.sleep(0.05)
    found = end_of(server.service.store, "copies")
    assert found.state.status == "Completed", found.failure
    files = server.service.places.under("s3://bucket/tb/copies/tensorboard-output/")
    assert sorted(file.name for file in files) == ["train/algo-1", "train/algo-2"]
    first, _ = logs.of(server.service.home.job("copies") / "logs")
    said = [event.text for event in first.all()]
    assert said[0] == "syrtos: recorded, and without effect here: ProfilerConfig"
    assert "the copies make no world" in said[1]


def test_a_job_without_a_network_has_no_keys(home: Home) -> None:
    _, attempt = prepared(home, record("offline", EnableNetworkIsolation=True))
    assert attempt._credentials == {}


def test_a_runner_runs_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = prepared(home, record("once"))
    lock = try_lock(home.job("once") / attempt.LOCK)
    assert lock is not None
    monkeypatch.setenv("SYRTOS_HOME", str(home.path))
    monkeypatch.setattr("sys.argv", ["runner", "once"])
    attempt.main()
    assert end_of(store, "once") == dataclasses.replace(end_of(store, "once"), attempts=1)
    assert end_of(store, "once").state.secondary == "Starting"
    lock.close()


def test_a_service_that_has_just_begun_has_no_address_yet(home: Home) -> None:
    assert home.endpoint() is None
    lock = try_lock(home.path / "serving")
    assert lock is not None
    assert home.endpoint() is None
    home.announce("http://127.0.0.1:1", None, None, 1)
    assert home.endpoint() == "http://127.0.0.1:1"
    lock.close()
    assert home.endpoint() is None


def test_places_of_a_runner_can_be_read(home: Home) -> None:
    _, attempt = prepared(home, record("placed"))
    assert isinstance(attempt._places, StorageURIs)


def test_no_file_is_allowed_where_no_service_says_which(home: Home, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    assert home.files() == []
    _, attempt = prepared(home, record("closed"))
    with pytest.raises(ConfigurationError, match="not in a folder that this service allows"):
        attempt._places.under((tmp_path / "secret").as_uri())
    home.announce(None, None, None, 1)
    assert home.files() is None
    (home.path / "endpoint.json").write_text("")
    assert home.files() == []


def test_a_job_ends_at_its_time_while_its_record_can_not_be_read(home: Home) -> None:
    """As where another process holds the database, and where a thread of the attempt hangs."""
    found = record("limited", StoppingCondition={"MaxRuntimeInSeconds": 1})
    store, _ = prepared(home, found)
    for status in ("Downloading", "Training"):
        store.change("limited", lambda r, status=status: r.with_transition(status))
    hangs, ends = threading.Event(), threading.Event()

    class Hanging(Store):
        def get(self, name: str) -> Record | None:
            hangs.wait()
            return super().get(name)

    def obey(why: str) -> None:
        if why == "MaxRuntimeExceeded":
            ends.set()

    limit = TimeLimit(1.0, None)
    watch = Watch(Hanging(home.database), end_of(store, "limited"), limit, obey, lambda: None)
    watch.start()
    assert ends.wait(30)
    hangs.set()
    watch.close()


def test_what_python_prints_when_it_can_not_start_is_in_the_log(
    home: Home, server: Server, tmp_path: Path
) -> None:
    source = tmp_path / "code.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        facts = tarfile.TarInfo("train.py")
        archive.addfile(facts, io.BytesIO())
    server.service.places.upload(source, "s3://bucket/code.tar.gz")
    hyperparameters = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "s3://bucket/code.tar.gz",
    }
    asked = record("seed", HyperParameters=hyperparameters, Environment={"PYTHONHASHSEED": "odd"})
    asked.request["AlgorithmSpecification"] = {"TrainingImage": "i", "TrainingInputMode": "File"}
    store, attempt = prepared(home, asked)
    attempt.run()
    assert (
        'ErrorMessage "Fatal Python error: config_init_hash_seed' in end_of(store, "seed").failure
    )
