"""Pages of ListTrainingJobs in a database of 10,000 jobs: how much of it is read for one of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy import event
from stored_records import record

from syrtos.jobs.api.service import Service
from syrtos.jobs.requests import states
from syrtos.jobs.storage.storage_uris import StorageURIs, store_of
from syrtos.jobs.store import job_store
from syrtos.jobs.store.home import Home
from syrtos.jobs.store.job_store import Store

JOBS = 10_000
FAILED = JOBS // 4
ENDS = {
    True: ("Downloading", "Training", "Failed"),
    False: ("Downloading", "Training", "Uploading", "Completed"),
}
PARAMETERS = {f"parameter-{k}": "x" * 50 for k in range(20)}  # a row is long, as real ones are


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A folder with a database that an older version has made, without the present indices."""
    home = Home(tmp_path_factory.mktemp("home"))
    path = home.database.removeprefix("sqlite:///")
    Store(home.database)
    with sqlite3.connect(path) as database:
        for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE 'ix_jobs_listed%'"
        ).fetchall():
            database.execute(f"DROP INDEX {name}")
    engine = sql.create_engine(home.database)
    with engine.begin() as connection:
        connection.execute(sql.insert(job_store._jobs), [row(number) for number in range(JOBS)])
    engine.dispose()
    return home


def row(number: int) -> dict[str, Any]:
    state = states.initial_state(float(number))
    for status in ENDS[number % 4 == 0]:
        state = state.with_transition(status, float(number))
    request = {"HyperParameters": PARAMETERS}
    return {
        **job_store._row(record(f"job-{number:05}", float(number), state=state, request=request)),
        "place": "",
    }


@pytest.fixture
def service(home: Home) -> Service:
    return Service(home, Store(home.database), StorageURIs(store_of(home)), capacity=4)


@pytest.fixture
def plans(service: Service) -> Iterator[list[str]]:
    """The steps in which SQLite has found what it was asked for."""
    found: list[str] = []

    def explain(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            raw = connection.connection.dbapi_connection
            found.extend(
                step[3] for step in raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            )

    engine = service.store._database.engine
    event.listen(engine, "before_cursor_execute", explain)
    yield found
    event.remove(engine, "before_cursor_execute", explain)


@pytest.mark.parametrize(
    "request_",
    [
        {}, {"SortOrder": "Descending"}, {"SortBy": "Name"}, {"SortBy": "Status"}, {"SortBy": "Status", "SortOrder": "Descending"},
        {"StatusEquals": "Failed"}, {"StatusEquals": "Failed", "SortBy": "Name"}, {"NameContains": "99"},
        {"NameContains": "99", "SortBy": "Status"}, {"NameContains": "9", "StatusEquals": "Completed", "SortBy": "Name"},
    ],
    ids=str,
)  # fmt: skip
def test_a_page_reads_no_rows_but_its_own(
    service: Service, plans: list[str], request_: dict[str, Any]
) -> None:
    """The names of a page are found in indices, which are small; whole rows, with their requests, are read by name."""
    service.list_training_jobs({**request_, "NextToken": "200", "MaxResults": 100})
    looked = [step for step in plans if step.startswith(("SCAN jobs", "SEARCH jobs"))]
    assert len(looked) == 2, plans
    whole = [step for step in looked if "COVERING INDEX" not in step]
    assert whole == ["SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (name=?)"], plans


@pytest.mark.parametrize("by", ["Name", "Status", "CreationTime"])
@pytest.mark.parametrize("order", ["Ascending", "Descending"])
def test_pages_hold_each_job_once(service: Service, by: str, order: str) -> None:
    found: list[str] = []
    asked: dict[str, Any] = {
        "SortBy": by,
        "SortOrder": order,
        "StatusEquals": "Failed",
        "MaxResults": 100,
    }
    token: dict[str, str] = {}
    while page := service.list_training_jobs({**asked, **token}):
        found += [job["TrainingJobName"] for job in page["TrainingJobSummaries"]]
        if "NextToken" not in page:
            break
        token = {"NextToken": page["NextToken"]}
    expected = [f"job-{number:05}" for number in range(0, JOBS, 4)]
    assert found == (expected if order == "Ascending" else expected[::-1])
    assert len(found) == FAILED
