"""The list of the page."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from syrtos.run_dir import RunDir
from syrtos_jobs.api.service import Service
from syrtos_jobs.http import listing
from syrtos_jobs.http.listing import Listing
from syrtos_jobs.placement import UNLIMITED
from syrtos_jobs.requests import states
from syrtos_jobs.storage.storage_uris import StorageURIs, store_of
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Record, Store

ENDS = {
    "Failed": ("Downloading", "Training", "Failed"),
    "Completed": ("Downloading", "Training", "Uploading", "Completed"),
}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    home = Home(tmp_path / "home")
    return Service(home, Store(home.database, home.place), StorageURIs(store_of(home)), capacity=4)


def add(
    service: Service, name: str, *path: str, slots: int = 1, attempts: int = 1, **facts: Any
) -> Record:
    """A job that has gone through the statuses of ``path``."""
    request = {
        "TrainingJobName": name,
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.x", "InstanceCount": slots, "VolumeSizeInGB": 1},
        "HyperParameters": {
            "sagemaker_program": '"train.py"',
            "depth": "18",
            "api_key": '"hidden"',
        },
    }
    record = Record(
        name=name, request=request, tags={"team": "vision"}, state=states.initial_state(time.time()), created=time.time(), modified=0.0,
        slots=slots, spot=False, access_key=name, attempts=attempts, **facts,
    )  # fmt: skip
    for status in path:
        record = record.with_transition(status)
    service.store.add(record)
    return record


def names(answer: dict[str, Any]) -> list[str]:
    return [job["TrainingJobName"] for job in answer["jobs"]]


def test_kinds_and_counts(service: Service) -> None:
    add(service, "failing", *ENDS["Failed"], failure="ClientError: no data\nmore")
    add(service, "ended", *ENDS["Completed"])
    add(service, "going", "Downloading", "Training", slots=2)
    add(service, "leaving", "Downloading", "Training", "Stopping")
    add(service, "queued", "Pending", attempts=0)
    add(service, "giving-way", "Downloading", "Training", "Interrupted")
    add(service, "gone", "Downloading", "Training", "Stopping", "Stopped")
    page = Listing(service)
    answer = page.answer("", "")
    assert names(answer) == ["gone", "giving-way", "queued", "leaving", "going", "ended", "failing"]
    assert answer["counts"] == {
        "running": 2,
        "waiting": 2,
        "failed": 1,
        "completed": 1,
        "stopped": 1,
    }
    assert (answer["capacity"], answer["used"], answer["more"]) == (4, 3, False)
    assert names(page.answer("", "waiting")) == ["giving-way", "queued"]
    assert names(page.answer("", "running")) == ["leaving", "going"]
    assert page.answer("", "failed")["jobs"][0]["reason"] == "ClientError: no data"
    assert len(names(page.answer("", "nonsense"))) == 7
    service.capacity = UNLIMITED
    assert page.answer("", "")["capacity"] is None


def test_words(service: Service) -> None:
    add(service, "pear", *ENDS["Failed"])
    add(service, "apple", *ENDS["Completed"])
    page = Listing(service)
    for words in ("PEAR", "pear train.py", "team=vision failed", "ear depth=18"):
        assert names(page.answer(words, "")) == ["pear"], words
    assert names(page.answer("depth=18", "completed")) == ["apple"]
    for words in ("hidden", "pear apple", "none"):
        assert names(page.answer(words, "")) == [], words


def test_many_jobs(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST", 3)
    for number in range(8):
        add(service, f"job-{number}", *ENDS["Failed" if number % 4 == 0 else "Completed"])
    page = Listing(service)
    assert names(page.answer("", "")) == ["job-7", "job-6", "job-5"]
    assert page.answer("", "")["more"]
    assert names(page.answer("failed", "")) == ["job-4", "job-0"]
    assert not page.answer("failed", "")["more"]
    assert page.answer("completed", "")["more"]


def test_values_and_the_time_that_is_left(service: Service) -> None:
    add(service, "going", "Downloading", "Training")
    add(service, "ended", *ENDS["Completed"], metrics={"acc": [0.5, 1.0], "other": [1.0, 1.0]})
    path = RunDir(service.home.job("going") / "attempt-1").epochs
    path.parent.mkdir(parents=True)
    now = time.time()
    logs = {"accuracy": 0.5, "loss": 2.0}
    epochs = [
        {"epoch": k + 1, "epochs": 4, "time": now + 10 * (k - 1), "logs": logs} for k in range(2)
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in epochs))
    ended, going = Listing(service).answer("", "")["jobs"]
    assert (going["metric"], going["script"]) == (("loss", 2.0), "train.py")
    assert 15 < going["left"] <= 20
    assert (ended["metric"], ended["left"]) == (("acc", 0.5), None)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("ClientError: no data\nmore", "ClientError: no data"),
        ('AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage "ValueError: a "b"" on algo-1\nCommand "x"', 'ValueError: a "b"'),
        ('AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage ""\nCommand "x"', "AlgorithmError: ExecuteUserScriptError:"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_line_that_says_most(reason: str, expected: str) -> None:
    assert listing.gist(reason) == expected
