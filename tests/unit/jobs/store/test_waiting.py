"""A database that another process holds, and what is in its file at the end."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sql
from sqlalchemy import exc
from stored_records import record

from syrtos.errors import ConfigurationError
from syrtos.jobs.store.database import Database, patiently
from syrtos.jobs.store.job_store import Store

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
