"""`/metrics` of the service, as Prometheus reads it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from syrtos.run_dir import RunDir
from syrtos_jobs.api.service import Service
from syrtos_jobs.http.exposition import Exposition
from syrtos_jobs.http.page import token
from syrtos_jobs.http.server import Server
from syrtos_jobs.requests import states
from syrtos_jobs.storage.storage_uris import StorageURIs, store_of
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Record, Store

Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(Home(tmp_path_factory.mktemp("service") / "home"), capacity=3)
    found.start()
    yield found
    found.close()


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """A service without a queue: jobs stay as they are."""
    home = Home(tmp_path / "home")
    return Service(home, Store(home.database, home.place), StorageURIs(store_of(home)), capacity=4)


def add(
    service: Service, name: str, *path: str, slots: int = 1, ago: float = 0.0, attempts: int = 1
) -> None:
    """A job that was created some time ago, and has gone through the statuses of ``path``."""
    began = time.time() - ago
    record = Record(
        name=name, request={}, tags={}, state=states.initial_state(began), created=began, modified=0.0, slots=slots, spot=False,
        access_key=name, attempts=attempts,
    )  # fmt: skip
    for status in path:
        record = record.with_transition(status)
    service.store.add(record)


def asked(server: Server, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(f"{server.url}/metrics", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read().decode()


def parsed(text: str) -> Samples:
    """Values by name and labels' values."""
    samples = (
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    )
    return {(sample.name, (*sample.labels.values(),)): sample.value for sample in samples}


def scraped(exposition: Exposition) -> Samples:
    samples = (sample for family in exposition.collect() for sample in family.samples)
    return {(sample.name, (*sample.labels.values(),)): sample.value for sample in samples}


def write(path: Path, *lines: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )


def test_it_needs_the_token(server: Server) -> None:
    key = token(server.service.home)
    for headers in (
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {key}x"},
        {"Authorization": f"Basic {key}"},
    ):
        status, _, text = asked(server, **headers)
        assert (status, "Authorization: Bearer TOKEN" in text) == (403, True)
        assert key not in text
    assert asked(server, Cookie=f"syrtos={key}")[0] == 403
    assert asked(server, Authorization=f"Bearer {key}", method="POST")[0] == 405


def test_the_text_is_what_prometheus_reads(server: Server) -> None:
    status, kind, text = asked(server, Authorization=f"Bearer {token(server.service.home)}")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    found = parsed(text)
    assert found["syrtos_slots", ()] == 3
    assert (
        found["syrtos_jobs", ("InProgress",)]
        == found["syrtos_slots_used", ()]
        == found["syrtos_queue_length", ()]
        == 0
    )


def test_jobs_and_the_queue(service: Service) -> None:
    add(service, "trains", "Downloading", "Training", slots=2, ago=900)
    add(service, "begins", slots=1)
    add(service, "waits", "Pending", ago=100, attempts=0)
    add(service, "newer", ago=50, attempts=0)
    add(service, "again", "Downloading", "Training", "Interrupted", "Starting", "Pending", ago=9000)
    add(service, "ended", "Downloading", "Training", "Uploading", "Completed")
    found = scraped(Exposition(service))
    by_status = {
        labels[0]: value for (name, labels), value in found.items() if name == "syrtos_jobs"
    }
    assert by_status == {"InProgress": 5, "Completed": 1, "Failed": 0, "Stopping": 0, "Stopped": 0}
    assert (found["syrtos_slots", ()], found["syrtos_slots_used", ()]) == (4, 3)
    assert found["syrtos_queue_length", ()] == 3
    assert found["syrtos_queue_oldest_seconds", ()] == pytest.approx(
        100, abs=5
    )  # `again` has just been interrupted


def test_figures_of_jobs_that_train(service: Service) -> None:
    for name in ("trains", "damaged", "empty"):
        add(service, name, "Downloading", "Training")
    step = {"phase": "train", "wall": 0.5, "compute": 0.5, "steps": 1, "samples": 8}
    run_dir = service.home.job("trains") / "attempt-2"
    write(RunDir(service.home.job("trains") / "attempt-1").ledger(0), *[step] * 9)
    write(RunDir(run_dir).ledger(0), *[step] * 3)
    write(RunDir(run_dir).epochs, {"epoch": 2, "time": 1.0, "trained": 3, "logs": {"loss": 0.25}})
    write(RunDir(service.home.job("damaged") / "attempt-1").ledger(0), "no JSON")
    exposition = Exposition(service)
    found = scraped(exposition)
    assert found["syrtos_training_steps_total", ("trains",)] == 3
    assert found["syrtos_metric", ("trains", "loss")] == 0.25
    assert found["syrtos_epoch", ("trains",)] == 2
    assert found["syrtos_samples_per_second", ("trains",)] == 16
    with RunDir(run_dir).ledger(0).open("a") as file:
        file.write(json.dumps(step) + "\n")
    assert scraped(exposition)["syrtos_training_steps_total", ("trains",)] == 4
    service.store.change("trains", lambda record: record.with_transition("Uploading"))
    assert ("syrtos_training_steps_total", ("trains",)) not in scraped(exposition)
