"""The durable record of tuning jobs: one row each, in a table beside that of training jobs.

The facts about a trial's training are in the table of training jobs alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sql
from sqlalchemy import exc
from sqlalchemy.engine import RowMapping

from syrtos_jobs.store.database import Database

FINAL = frozenset({"Completed", "Failed", "Stopped"})

_metadata = sql.MetaData()
_tunings = sql.Table(
    "tuning_jobs",
    _metadata,
    sql.Column("name", sql.String(32), primary_key=True),
    sql.Column("place", sql.Text, nullable=False, index=True),
    sql.Column("request", sql.JSON, nullable=False),
    sql.Column("tags", sql.JSON, nullable=False),
    sql.Column("status", sql.String(16), nullable=False, index=True),
    sql.Column("created", sql.Float, nullable=False, index=True),
    sql.Column("modified", sql.Float, nullable=False),
    sql.Column("ended", sql.Float),
    sql.Column("seed", sql.BigInteger, nullable=False),
    sql.Column("trials", sql.JSON, nullable=False),
    sql.Column("failure", sql.Text, nullable=False),
)


@dataclasses.dataclass(frozen=True)
class TrialEntry:
    """A trial that a tuning job has begun, or is about to begin.

    The trial is written down before its training job is created.

    Attributes:
        number: counted from 1.
        name: the name of its training job.
        tuned: the hyperparameters that were chosen for it.
        interrupted: whether it was running when the tuning job was asked to stop.
        parent: the tuning job that began it, if this one has inherited it; otherwise empty.
    """

    number: int
    name: str
    tuned: Mapping[str, str]
    interrupted: bool = False
    parent: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """A tuning job as the table has it.

    Attributes:
        request: CreateHyperParameterTuningJob's parameters.
        tags: by key.
        status: ``InProgress``, ``Stopping``, ``Completed``, ``Failed`` or ``Stopped``.
        created, modified, ended: seconds since 1970.
        seed: the seed of all suggestions.
        trials: in the order in which they were begun.
        inherited: trials of the earlier tuning jobs that it was told to learn from.
        failure: the reason why it failed, or why no more trials could be begun; empty without one.
    """

    name: str
    request: dict[str, Any]
    tags: dict[str, str]
    status: str
    created: float
    modified: float
    seed: int
    ended: float | None = None
    trials: tuple[TrialEntry, ...] = ()
    inherited: tuple[TrialEntry, ...] = ()
    failure: str = ""

    @property
    def final(self) -> bool:
        """Returns whether the tuning job has ended: no other status can follow."""
        return self.status in FINAL


class Tunings:
    """The tuning jobs of a service.

    Args:
        url: a database, in SQLAlchemy's form.
        place: the name of the service; services that share a database run their own jobs only.
    """

    def __init__(self, url: str, place: str = "") -> None:
        self._place = place
        self._database = Database(url, _metadata)

    def add(self, record: TuningRecord) -> bool:
        """Writes down a new tuning job; False if its name is taken."""
        try:
            with self._database.writing() as connection:
                connection.execute(sql.insert(_tunings).values(place=self._place, **_row(record)))
        except exc.IntegrityError:
            return False
        return True

    def get(self, name: str) -> TuningRecord | None:
        """Returns the tuning job of this name; None if there is none."""
        found = self._database.rows(sql.select(_tunings).where(_tunings.c.name == name))
        return _record(found[0]) if found else None

    def active(self) -> list[TuningRecord]:
        """Returns the service's tuning jobs that have not ended, oldest first."""
        going_on = (_tunings.c.status.not_in(FINAL), _tunings.c.place == self._place)
        return [
            _record(row)
            for row in self._database.rows(
                sql.select(_tunings).where(*going_on).order_by(_tunings.c.created)
            )
        ]

    def change(
        self, name: str, how: Callable[[TuningRecord], TuningRecord | None]
    ) -> TuningRecord | None:
        """Replaces a tuning job by the result of ``how``, in one transaction.

        The job is unchanged if the result is None.

        Returns:
            The tuning job after the change; None if there is none of this name.
        """
        with self._database.writing() as connection:
            chosen = sql.select(_tunings).where(_tunings.c.name == name).with_for_update()
            row = connection.execute(chosen).mappings().first()
            before = _record(row) if row else None
            after = how(before) if before else None
            if after is not None:
                connection.execute(
                    sql.update(_tunings).where(_tunings.c.name == name).values(_row(after))
                )
            return after or before

    def remove(self, name: str) -> None:
        """Forgets a tuning job."""
        with self._database.writing() as connection:
            connection.execute(sql.delete(_tunings).where(_tunings.c.name == name))

    def find(
        self,
        conditions: Sequence[sql.ColumnElement[bool]],
        order: Sequence[sql.ColumnElement[Any]],
        after: int,
        limit: int,
    ) -> tuple[list[TuningRecord], int | None]:
        """Returns a page of the tuning jobs that fulfil all ``conditions``, and the next offset.

        The offset is that of the next page, and None if there is none.
        """
        chosen = (
            sql.select(_tunings).where(*conditions).order_by(*order).offset(after).limit(limit + 1)
        )
        found = [_record(row) for row in self._database.rows(chosen)]
        return found[:limit], after + limit if len(found) > limit else None


columns = _tunings.c


def _row(record: TuningRecord) -> dict[str, object]:
    facts = dataclasses.asdict(record)
    # in one column; inherited ones are known by their parent
    trials = [*facts.pop("inherited"), *facts["trials"]]
    # Postgres takes no NUL in a text
    return {**facts, "trials": trials, "failure": record.failure.replace("\0", "")}


def _record(row: RowMapping) -> TuningRecord:
    facts: dict[str, Any] = {str(name): value for name, value in row.items() if name != "place"}
    entries = [TrialEntry(**entry) for entry in facts.pop("trials")]
    own, inherited = (
        [entry for entry in entries if bool(entry.parent) is theirs] for theirs in (False, True)
    )
    return TuningRecord(**facts, trials=tuple(own), inherited=tuple(inherited))
