"""What a service says of an error."""

from __future__ import annotations

import errno
import sqlite3

import pytest
import sqlalchemy as sql
from sqlalchemy import exc

from syrtos_jobs import complaints
from syrtos_jobs.store.database import writing

_TABLE = sql.Table("t", sql.MetaData(), sql.Column("x", sql.String))


def _locked() -> exc.OperationalError:
    held = sqlite3.OperationalError("database is locked")
    held.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return exc.OperationalError("SELECT a_name", {}, held)


def test_a_full_disk_is_a_sentence_without_names(capsys: pytest.CaptureFixture[str]) -> None:
    engine = sql.create_engine("sqlite://")
    _TABLE.create(engine)
    with writing(engine) as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=2")
        with pytest.raises(exc.OperationalError) as full:
            connection.execute(sql.insert(_TABLE).values(x="a" * 100_000))
    for error in (full.value, OSError(errno.ENOSPC, "No space left", "a_name")):
        try:
            raise error
        except Exception:
            complaints.complain_in_full()
        assert capsys.readouterr().err == f"syrtos: {complaints.FULL}\n"


def test_a_locked_database_is_a_sentence() -> None:
    said = complaints.describe(_locked())
    assert "is locked by another process" in said
    assert "a_name" not in said


def test_other_errors_have_their_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError("odd")
    try:
        raise error
    except ValueError:
        complaints.complain_in_full()
    assert complaints.describe(error) == "odd"
    assert "Traceback" in capsys.readouterr().err
