"""The durable record of all jobs: one table, in SQLite or Postgres.

Every process of a service reads and writes the table.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sql
from sqlalchemy import exc
from sqlalchemy.engine import Connection, RowMapping

from syrtos_jobs.requests.states import JobState
from syrtos_jobs.store.backups import ALL_DELETED
from syrtos_jobs.store.database import PATIENCE, Database

_metadata = sql.MetaData()
_jobs = sql.Table(
    "jobs",
    _metadata,
    sql.Column("name", sql.String(63), primary_key=True),
    sql.Column("place", sql.Text, nullable=False, index=True),
    sql.Column("request", sql.JSON, nullable=False),
    sql.Column("tags", sql.JSON, nullable=False),
    sql.Column("status", sql.String(16), nullable=False),
    sql.Column("secondary", sql.String(32), nullable=False),
    sql.Column("transitions", sql.JSON, nullable=False),
    sql.Column("created", sql.Float, nullable=False),
    sql.Column("modified", sql.Float, nullable=False),
    sql.Column("slots", sql.Integer, nullable=False),
    sql.Column("spot", sql.Boolean, nullable=False),
    sql.Column("access_key", sql.String(32), nullable=False, index=True),
    sql.Column("attempts", sql.Integer, nullable=False),
    sql.Column("yields", sql.Boolean, nullable=False),
    sql.Column("begin_until", sql.Float),
    sql.Column("wait_until", sql.Float),
    sql.Column("failure", sql.Text, nullable=False),
    sql.Column("metrics", sql.JSON, nullable=False),
    sql.Column("progress", sql.JSON, nullable=False),
    # the orders of lists: a page's names are found in an index alone, and only its own rows are
    # read
    sql.Index("ix_jobs_listed", "created", "name"),
    sql.Index("ix_jobs_listed_by_status", "status", "created", "name"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Brief:
    """The facts about a job that the queue reads, of hundreds of jobs, five times a second.

    Attributes:
        slots: the workers that it occupies while it runs.
        spot: whether it gives way to jobs that are no spot jobs.
        attempts: the number of times that it was started.
        yields: whether it has been asked to give way.
        begin_until, wait_until: the times, in seconds since 1970, at which it will have waited for
            too long: to be started at all, and over all attempts.
    """

    name: str
    status: str
    secondary: str
    slots: int
    spot: bool
    attempts: int
    yields: bool
    begin_until: float | None
    wait_until: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A job as the table has it.

    Attributes:
        request: CreateTrainingJob's parameters.
        tags: by key.
        created, modified: seconds since 1970.
        slots: the workers that it occupies while it runs.
        spot: whether it gives way to jobs that are no spot jobs.
        access_key: the access key of its script's own credentials.
        attempts: the number of times that it was started.
        yields: whether it has been asked to give way.
        begin_until, wait_until: see `Brief`.
        failure: the reason why it failed; empty if it has not.
        metrics: the last value of each metric, and its time: ``{name: [value, seconds]}``.
        progress: ``ProgressInfo`` of Describe.
    """

    name: str
    request: dict[str, Any]
    tags: dict[str, str]
    state: JobState
    created: float
    modified: float
    slots: int
    spot: bool
    access_key: str
    attempts: int = 0
    yields: bool = False
    begin_until: float | None = None
    wait_until: float | None = None
    failure: str = ""
    metrics: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    progress: dict[str, int] = dataclasses.field(default_factory=dict)

    def with_transition(self, secondary: str, message: str | None = None, **changes: Any) -> Record:
        """Returns this job after a transition that happens now."""
        now = time.time()
        return dataclasses.replace(
            self, state=self.state.with_transition(secondary, now, message), modified=now, **changes
        )

    def with_end(self, secondary: str, message: str | None = None, **changes: Any) -> Record | None:
        """Returns this job as ended now; None if it had ended already, and stays unchanged."""
        return None if self.state.final else self.with_transition(secondary, message, **changes)

    def with_failure(self, reason: str) -> Record | None:
        """Returns this job as failed now, with ``reason``; None if it had ended already."""
        return self.with_end("Failed", reason, failure=reason)


class Store:
    """The jobs of a service.

    Args:
        url: a database, in SQLAlchemy's form.
        place: the name of the service; services that share a database run their own jobs only.
        patience: for so many seconds a database that is locked, or away, is asked again.

    Raises:
        ConfigurationError: there is no such database, or its driver is missing.
    """

    def __init__(self, url: str, place: str = "", patience: float = PATIENCE) -> None:
        self._place = place
        self._database = Database(url, _metadata, patience)

    def add(self, record: Record) -> bool:
        """Writes down a new job; False if its name is taken."""
        try:
            with self._database.writing() as connection:
                connection.execute(sql.insert(_jobs).values(place=self._place, **_row(record)))
                self._note_deleted(connection, 0)
        except exc.IntegrityError:
            return False
        return True

    def get(self, name: str) -> Record | None:
        """Returns the job of this name; None if there is none."""
        rows = self._database.rows(_BY_NAME, {"wanted": name})
        return _record(rows[0]) if rows else None

    def by_key(self, access_key: str) -> Record | None:
        """Returns the job whose script has this access key; None if there is none."""
        found = self._all(sql.select(_jobs).where(_jobs.c.access_key == access_key))
        return found[0] if found else None

    def active(self) -> list[Brief]:
        """Returns the service's jobs that have not ended, oldest first."""
        return [Brief(**row) for row in self._database.rows(_ACTIVE, {"here": self._place})]

    def change(self, name: str, how: Callable[[Record], Record | None]) -> Record | None:
        """Replaces a job by the result of ``how``, in one transaction; None leaves it unchanged.

        Returns:
            The job after the change; None if there is no job of this name.
        """
        with self._database.writing() as connection:
            # locked: in Postgres a transaction alone would let another process change the row in
            # between
            row = (
                connection.execute(_BY_NAME.with_for_update(), {"wanted": name}).mappings().first()
            )
            if row is None:
                return None
            before = _record(row)
            after = how(before)
            if after is None:
                return before
            connection.execute(sql.update(_jobs).where(_jobs.c.name == name).values(_row(after)))
            return after

    def remove(self, name: str) -> None:
        """Forgets a job."""
        with self._database.writing() as connection:
            connection.execute(sql.delete(_jobs).where(_jobs.c.name == name))
            if not connection.execute(sql.select(sql.func.count()).select_from(_jobs)).scalar():
                self._note_deleted(connection, ALL_DELETED)

    def _note_deleted(self, connection: Connection, mark: int) -> None:
        """Marks whether the last job was deleted.

        `Backups` tells such a database from one that has lost its jobs.
        """
        if self._database.is_sqlite:
            connection.exec_driver_sql(f"PRAGMA user_version = {mark}")

    def find(
        self,
        conditions: Sequence[sql.ColumnElement[bool]],
        order: Sequence[sql.ColumnElement[Any]],
        after: int,
        limit: int,
    ) -> tuple[list[Record], int | None]:
        """Returns a page of the jobs that fulfil all ``conditions``, and the next page's offset.

        The offset is None if there is no next page.
        """
        # names first: they are in an index, and a request is kilobytes. One more than the page has
        # shows that another follows
        names = (
            sql.select(_jobs.c.name)
            .where(*conditions)
            .order_by(*order)
            .offset(after)
            .limit(limit + 1)
        )
        found = self._all(sql.select(_jobs).where(_jobs.c.name.in_(names)).order_by(*order))
        return found[:limit], after + limit if len(found) > limit else None

    def counts(self) -> dict[tuple[str, str], int]:
        """Returns the number of jobs for each pair of status and secondary status."""
        kinds = (_jobs.c.status, _jobs.c.secondary)
        chosen = sql.select(*kinds, sql.func.count().label("count")).group_by(*kinds)
        return {
            (row["status"], row["secondary"]): row["count"] for row in self._database.rows(chosen)
        }

    def close(self) -> None:
        """Leaves the whole record in the database's file, for those who copy it."""
        self._database.close()

    def _all(self, chosen: sql.Executable) -> list[Record]:
        return [_record(row) for row in self._database.rows(chosen)]


columns = _jobs.c
# Made once, since they run several times a second.
_ACTIVE = (
    sql.select(*(_jobs.c[field.name] for field in dataclasses.fields(Brief)))
    .where(_jobs.c.status.in_(("InProgress", "Stopping")), _jobs.c.place == sql.bindparam("here"))
    .order_by(_jobs.c.created, _jobs.c.name)
)
_BY_NAME = sql.select(_jobs).where(_jobs.c.name == sql.bindparam("wanted"))


def _row(record: Record) -> dict[str, object]:
    facts = {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if field.name != "state"
    }
    state = record.state
    # Postgres takes no NUL in a text, and JSON no NaN
    facts["failure"] = record.failure.replace("\0", "")
    facts["metrics"] = {
        name: pair for name, pair in record.metrics.items() if all(map(math.isfinite, pair))
    }
    return {
        **facts,
        "status": state.status,
        "secondary": state.secondary,
        "transitions": list(state.transitions),
    }


def _record(row: RowMapping) -> Record:
    facts: dict[str, Any] = {str(name): value for name, value in row.items() if name != "place"}
    state = JobState(facts.pop("status"), facts.pop("secondary"), tuple(facts.pop("transitions")))
    return Record(state=state, **facts)
