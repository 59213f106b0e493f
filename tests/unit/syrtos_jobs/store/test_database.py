"""Pages of ListTrainingJobs in a database of 10,000 jobs: how much of it is read for one of them."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy import event, exc
from stored_records import record

from syrtos.errors import ConfigurationError
from syrtos_jobs.api.service import Service
from syrtos_jobs.requests import states
from syrtos_jobs.storage.storage_uris import StorageURIs, store_of
from syrtos_jobs.store import job_store
from syrtos_jobs.store.database import Database, patiently
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Store

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


_METADATA = sql.MetaData()
_TABLE = sql.Table("t", _METADATA, sql.Column("x", sql.Integer))


def _holding(path: Path) -> sqlite3.Connection:
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    return holder


def _impatient(url: str, patience: float) -> Database:
    """A database whose driver does not wait itself."""
    found = Database(url, _METADATA, patience)
    with found.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout=0")
    return found


def test_a_writer_waits_for_a_locked_database(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    database = _impatient(f"sqlite:///{path}", 60.0)
    holder = _holding(path)
    threading.Timer(0.3, holder.execute, ["COMMIT"]).start()
    with database.writing() as connection:
        connection.execute(sql.insert(_TABLE).values(x=1))
    assert [row["x"] for row in database.rows(sql.select(_TABLE))] == [1]
    holder.close()


def test_patience_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    database = _impatient(f"sqlite:///{path}", 0.1)
    holder = _holding(path)
    with pytest.raises(exc.OperationalError, match="locked"), database.writing():
        pass
    holder.close()


def test_other_errors_are_not_waited_for() -> None:
    engine, asked = sql.create_engine("sqlite://"), 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT * FROM missing")

    with pytest.raises(exc.OperationalError, match="no such table"):
        patiently(ask, 60.0)
    assert asked == 1


def test_a_copy_of_the_file_alone_has_all_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    store = Store(f"sqlite:///{path}")
    store.add(record("kept", 1.0))
    store.close()
    (tmp_path / "copy.sqlite").write_bytes(path.read_bytes())
    assert Store(f"sqlite:///{tmp_path / 'copy.sqlite'}").get("kept")


def test_a_job_is_not_taken_that_would_be_lost(tmp_path: Path) -> None:
    """As where the database's file has been removed while the service runs."""
    path = tmp_path / "jobs.sqlite"
    store = Store(f"sqlite:///{path}")
    store.add(record("kept", 1.0))
    path.rename(tmp_path / "away")
    with pytest.raises(ConfigurationError, match="has been removed while it was used"):
        store.add(record("lost", 2.0))
    (tmp_path / "away").rename(path)
    assert store.get("kept")
    assert not store.get("lost")
