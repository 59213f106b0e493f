"""A database, in SQLite or Postgres: connections that read, and transactions that write."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import sqlalchemy as sql
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine, RowMapping

from syrtos.errors import ConfigurationError


class Database:
    """The tables of ``metadata`` in a database; missing tables and indices are made.

    Args:
        url: in SQLAlchemy's form.

    Raises:
        ConfigurationError: there is no such database, or its driver is missing.
    """

    def __init__(self, url: str, metadata: sql.MetaData) -> None:
        self.engine = _engine(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._make(url, lambda: metadata.create_all(self.engine))
        for index in (index for table in metadata.tables.values() for index in table.indexes):
            # `create_all` makes none for a table that is there
            self._make(url, functools.partial(index.create, self.engine, checkfirst=True))

    def _make(self, url: str, make: Callable[[], object]) -> None:
        """Makes tables or an index, unless another process is faster.

        Raises:
            ConfigurationError: the database can't be reached.
        """
        try:
            make()
        except exc.OperationalError as error:
            # between the question whether it is there and its making, another process may have made
            # it
            if "already exists" not in str(error):
                raise _unreachable(url, error) from error
        except (exc.ProgrammingError, exc.IntegrityError) as error:
            # the same in Postgres, which makes a type for each table
            if "exist" not in str(error) and "pg_type" not in str(error):
                raise _unreachable(url, error) from error

    def rows(
        self, chosen: sql.Executable, parameters: Mapping[str, object] | None = None
    ) -> list[RowMapping]:
        """Returns the rows that a query finds."""
        with self.engine.connect() as connection:
            return list(connection.execute(chosen, parameters or {}).mappings())

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Context manager: one transaction, which is rolled back if the block raises."""
        with self.engine.connect() as connection:
            if self.is_sqlite:
                # as a writer from the first: two readers that want to become writers would wait for
                # each other
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()


# one for each database in a process: each has a pool of connections
@functools.cache
def _engine(url: str) -> Engine:
    try:
        engine = sql.create_engine(
            url.replace("postgresql://", "postgresql+psycopg://", 1),
            pool_pre_ping=not url.startswith("sqlite"),
        )
    except (exc.ArgumentError, ImportError) as error:
        raise _unreachable(url, error) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", prepare_sqlite)
    return engine


def prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    """Sets up a new connection: concurrent readers beside a writer, and durable commits."""
    # transactions are begun by `writing`: the driver would begin them later, and as readers
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000"):
        connection.execute(f"PRAGMA {pragma}")


def _unreachable(url: str, error: Exception) -> ConfigurationError:
    shown = (
        sql.engine.make_url(url).render_as_string(hide_password=True) if "://" in url else "the URL"
    )
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ConfigurationError(
        f"The database {shown} can't be used: {reason}. Write it as"
        " postgresql://user:password@host/name (`pip install 'psycopg[binary]'`), or unset"
        " SYRTOS_DATABASE_URL to use a file."
    )
