"""Records that many threads and processes change at once, in SQLite and in Postgres."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import exc
from stored_records import record

from syrtos.errors import ConfigurationError
from syrtos_jobs import complaints
from syrtos_jobs.requests import states
from syrtos_jobs.store.job_store import Record, Store, columns


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    found = Store(url)
    yield found
    for kept in found.find([], [], 0, 10_000)[0]:
        found.remove(kept.name)


def test_what_was_added_is_found(store: Store) -> None:
    wanted = record(
        "one",
        tags={"ü": "é"},
        metrics={"loss": [0.1, 2.0]},
        progress={"CurrentStep": 3},
        failure="ß\n",
    )
    assert store.add(wanted)
    assert store.get("one") == wanted
    assert store.by_key("KEYone") == wanted
    assert store.get("two") is None
    assert store.by_key("KEYtwo") is None


def test_a_name_is_taken_once(store: Store) -> None:
    assert store.add(record("one", slots=1))
    assert not store.add(record("one", slots=2))
    found = store.get("one")
    assert found is not None
    assert found.slots == 1


def test_changes(store: Store) -> None:
    store.add(record("one"))
    after = store.change("one", lambda r: dataclasses.replace(r, attempts=r.attempts + 1))
    assert after is not None
    assert after.attempts == 1
    assert store.get("one") == after
    assert store.change("one", lambda _: None) == after
    assert store.change("none", lambda r: r) is None
    store.remove("one")
    assert store.get("one") is None
    store.remove("one")


def test_a_change_that_fails_changes_nothing(store: Store) -> None:
    store.add(record("one"))

    def fails(found: Record) -> Record:
        raise ConfigurationError("no")

    with pytest.raises(ConfigurationError, match="no"):
        store.change("one", fails)
    assert store.get("one") == record("one")
    assert store.change("one", lambda r: dataclasses.replace(r, slots=7)) == record("one", slots=7)


def test_active_jobs_come_oldest_first(store: Store) -> None:
    store.add(record("b", 2.0))
    store.add(record("c", 1.0))
    store.add(record("a", 2.0))
    store.add(record("over", 0.5, state=states.initial_state(0.5).with_transition("Failed", 0.6)))
    store.add(
        record("leaving", 3.0, state=states.initial_state(0.5).with_transition("Stopping", 0.6))
    )
    assert [found.name for found in store.active()] == ["c", "a", "b", "leaving"]


def test_pages_hold_each_job_once(store: Store) -> None:
    for number in range(23):
        store.add(record(f"job-{number:02}", float(number)))
    names: list[str] = []
    after: int | None = 0
    while after is not None:
        page, after = store.find([], [columns.created.desc()], after, 5)
        assert len(page) <= 5
        names += [found.name for found in page]
    assert names == [f"job-{number:02}" for number in reversed(range(23))]
    assert store.find([columns.status == "Failed"], [], 0, 5) == ([], None)
    found, more = store.find([columns.name.contains("_", autoescape=True)], [], 0, 5)
    assert (found, more) == ([], None)
    exact, more = store.find([columns.created >= 20.0], [columns.created], 0, 3)
    assert ([one.name for one in exact], more) == (["job-20", "job-21", "job-22"], None)


def test_threads_lose_no_change(store: Store) -> None:
    store.add(record("one"))

    def add_one(_: int) -> None:
        store.change("one", lambda r: dataclasses.replace(r, attempts=r.attempts + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add_one, range(80)))
    found = store.get("one")
    assert found is not None
    assert found.attempts == 80


def test_threads_add_a_name_once(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda k: store.add(record("one", slots=k)), range(16)))
    assert added.count(True) == 1
    found = store.get("one")
    assert found is not None
    assert found.slots == added.index(True)


_COUNTS = """
import dataclasses, sys
from syrtos_jobs.store.job_store import Store
store = Store(sys.argv[1])
for _ in range(40):
    store.change("one", lambda r: dataclasses.replace(r, attempts=r.attempts + 1))
"""


def test_processes_lose_no_change(store: Store, url: str) -> None:
    store.add(record("one"))
    counting = [subprocess.Popen([sys.executable, "-c", _COUNTS, url]) for _ in range(3)]
    assert [process.wait(60) for process in counting] == [0, 0, 0]
    found = store.get("one")
    assert found is not None
    assert found.attempts == 120


@pytest.mark.parametrize(
    "text",
    ["a\0b", "\x01\x1b[0m", "\U0001f600", "\ufffd"],
    ids=["nul", "control", "astral", "replaced"],
)
def test_any_text_that_a_script_may_leave_can_be_written_down(store: Store, text: str) -> None:
    """A job whose last words can't be stored would never end."""
    store.add(record("one"))
    after = store.change("one", lambda r: r.with_transition("Failed", text, failure=text))
    assert after is not None
    found = store.get("one")
    assert found is not None
    assert found.state.final
    assert found.failure.replace("\0", "").strip("ab") == text.replace("\0", "").strip("ab")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_any_number_that_a_script_may_print_can_be_written_down(store: Store, value: float) -> None:
    """Training that diverges prints nan: that must not end the thread that watches over the job."""
    store.add(record("one"))
    after = store.change("one", lambda r: dataclasses.replace(r, metrics={"loss": [value, 1.0]}))
    assert after is not None
    assert store.get("one") is not None


def test_a_database_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(ConfigurationError, match="can't be used") as error:
        Store("postgresql://someone:hunter22@127.0.0.1:9/nothing?connect_timeout=2")
    assert "hunter22" not in str(error.value)
    with pytest.raises(ConfigurationError, match="can't be used"):
        Store("nonsense")
    with pytest.raises(ConfigurationError, match="can't be used"):
        Store("sqlite:////nowhere/at/all/jobs.sqlite")


def test_a_database_that_is_away_is_asked_again_and_named(
    postgres: Callable[[], AbstractContextManager[str]],
) -> None:
    with postgres() as url:
        store = Store(url, patience=1.0)
        assert store.active() == []
    began = time.monotonic()
    with pytest.raises(exc.OperationalError) as error:
        store.active()
    assert time.monotonic() - began >= 1.0
    assert "can't be reached" in complaints.hindrance(error.value)


_OPENS = "import sys; from syrtos_jobs.store.job_store import Store; Store(sys.argv[1]).active()"


def test_processes_may_make_the_same_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.sqlite'}"
    opening = [
        subprocess.Popen([sys.executable, "-c", _OPENS, url], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60)[1] for process in opening]
    assert [process.returncode for process in opening] == [0, 0, 0], said
