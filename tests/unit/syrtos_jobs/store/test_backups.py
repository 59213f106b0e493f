"""Copies of the database, and a start that does not forget jobs."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from stored_records import record

from syrtos.errors import ConfigurationError
from syrtos_jobs.store.backups import Backups
from syrtos_jobs.store.job_store import Store

DAY = 24 * 3600.0


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    """With one copy, of a database with two jobs."""
    with sqlite3.connect(tmp_path / "jobs.sqlite") as database:
        database.execute("CREATE TABLE jobs (name TEXT)")
        database.executemany("INSERT INTO jobs VALUES (?)", [("one",), ("two",)])
    database.close()
    found = Backups(tmp_path / "jobs.sqlite", tmp_path / "backups")
    found.keep()
    return found


def jobs(path: Path) -> list[str]:
    with sqlite3.connect(path) as database:
        return [name for (name,) in database.execute("SELECT name FROM jobs ORDER BY name")]


def test_a_first_start_has_nothing_to_check(tmp_path: Path) -> None:
    found = Backups(tmp_path / "jobs.sqlite", tmp_path / "backups")
    found.check()
    found.keep()
    assert not list(tmp_path.iterdir())


def test_one_a_day_and_three_at_most(backups: Backups) -> None:
    now = time.time()
    backups.keep(now + DAY / 2)
    assert len(backups.newest_first()) == 1
    for day in range(1, 6):
        backups.keep(now + day * (DAY + 60))
    assert len(backups.newest_first()) == 3
    assert jobs(backups.newest_first()[0]) == ["one", "two"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in backups.newest_first())
    backups.check()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    path.write_bytes(data)


def empty_table(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM jobs")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (damage, "is damaged"),
        (lambda path: path.write_bytes(b"nonsense" * 999), "is damaged"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.unlink(), "is gone"),
        (empty_table, "holds no job any more"),
    ],
)
def test_what_is_lost_is_said_and_taken_back(
    tmp_path: Path, backups: Backups, harm: object, words: str
) -> None:
    harm(tmp_path / "jobs.sqlite")  # type: ignore[operator]
    with pytest.raises(
        ConfigurationError, match=f"{words}.*`syrtos serve --restore` takes back the copy of"
    ):
        backups.check()
    assert backups.restore() == backups.newest_first()[0]
    assert jobs(tmp_path / "jobs.sqlite") == ["one", "two"]
    backups.check()


def test_a_damaged_copy_is_passed_over(tmp_path: Path, backups: Backups) -> None:
    backups.keep(time.time() + 2 * DAY)
    newest, older = backups.newest_first()
    damage(newest)
    assert backups.restore() == older
    damage(older)
    assert backups.restore() is None


def test_a_damaged_database_does_not_replace_good_copies(tmp_path: Path, backups: Backups) -> None:
    damage(tmp_path / "jobs.sqlite")
    for day in range(1, 6):
        with pytest.raises(ConfigurationError, match="is damaged"):
            backups.keep(time.time() + day * (DAY + 60))
    assert [jobs(copy) for copy in backups.newest_first()] == [["one", "two"]]


def test_a_copy_that_was_not_finished_is_none(tmp_path: Path, backups: Backups) -> None:
    (tmp_path / "backups" / ".20991231-000000.sqlite").touch()
    assert len(backups.newest_first()) == 1


def test_jobs_that_were_deleted_are_not_missed(tmp_path: Path) -> None:
    store, found = (
        Store(f"sqlite:///{tmp_path / 'jobs.sqlite'}"),
        Backups(tmp_path / "jobs.sqlite", tmp_path / "backups"),
    )
    store.add(record("a"))
    found.keep()
    store.remove("a")
    found.check()
    store.add(record("b"))
    empty_table(tmp_path / "jobs.sqlite")
    with pytest.raises(ConfigurationError, match="holds no job any more"):
        found.check()
    found.restore()
    restored = Store(f"sqlite:///{tmp_path}/./jobs.sqlite").get("a")
    assert restored is not None
    assert restored.state.status == "Failed"
    assert "was restored from a copy" in restored.failure
