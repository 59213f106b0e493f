"""A database, in SQLite or Postgres: connections that read, and transactions that write."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sql
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine, RowMapping
from sqlalchemy.pool import ConnectionPoolEntry

from syrtos.errors import ConfigurationError

FoundT = TypeVar("FoundT")
PATIENCE = 45.0  # seconds: a client that waits for an answer gets an error then
_PAUSE = 0.1


class Database:
    """The tables of ``metadata`` in a database; missing tables and indices are made.

    Args:
        url: in SQLAlchemy's form.
        patience: for so many seconds a database that is locked, or away, is asked again.

    Raises:
        ConfigurationError: there is no such database, or its driver is missing.
    """

    def __init__(self, url: str, metadata: sql.MetaData, patience: float = PATIENCE) -> None:
        self._patience = patience
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
            # of a server that is away at the start its address may be wrong
            patiently(make, self._patience if self.is_sqlite else 0)
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

        def read() -> list[RowMapping]:
            with self.engine.connect() as connection:
                return list(connection.execute(chosen, parameters or {}).mappings())

        return patiently(read, self._patience)

    def writing(self) -> contextlib.AbstractContextManager[Connection]:
        """Context manager: one transaction, which is rolled back if the block raises."""
        return writing(self.engine, self._patience)

    def close(self) -> None:
        """Moves into a database's file what is still in the journal beside it."""
        if self.is_sqlite:
            checkpoint(self.engine)


@contextmanager
def writing(engine: Engine, patience: float = PATIENCE) -> Iterator[Connection]:
    """Context manager: one transaction, which is rolled back if the block raises.

    A database that is locked, or away, is waited for as long as ``patience`` says, in seconds.
    """

    def begin() -> Connection:
        connection = engine.connect()
        try:
            if engine.dialect.name == "sqlite":
                # as a writer from the first: two readers that want to become writers would wait for
                # each other
                connection.exec_driver_sql("BEGIN IMMEDIATE")
        except BaseException:
            connection.close()
            raise
        return connection

    with patiently(begin, patience) as connection:
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


def patiently(ask: Callable[[], FoundT], patience: float = PATIENCE) -> FoundT:
    """Calls a function again for ``patience`` seconds while a database is locked or away."""
    until = time.monotonic() + patience
    while True:
        try:
            return ask()
        except exc.OperationalError as error:
            if not may_pass(error) or time.monotonic() > until:
                raise
            time.sleep(_PAUSE)


def may_pass(error: exc.OperationalError) -> bool:
    """Returns whether an error is one of a database that another process holds, or that is away."""
    if isinstance(error.orig, sqlite3.Error):
        return error.orig.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    # A connection that could not be made has no statement; a server that refuses it says why by a
    # code of SQL: it begins (57P03), or has no connection left (53300).
    code = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or (
        error.statement is None and code in (None, "57P03", "53300")
    )


def is_full(error: exc.OperationalError) -> bool:
    """Returns whether an error is one of a database whose disk is full."""
    code = error.orig.sqlite_errorcode & 0xFF if isinstance(error.orig, sqlite3.Error) else None
    # Postgres names it by a code of SQL
    return code == sqlite3.SQLITE_FULL or getattr(error.orig, "sqlstate", None) == "53100"


def checkpoint(engine: Engine) -> None:
    """Moves what is in the journal of an SQLite file into the file, and closes its connections."""
    # whoever copies the file alone has all of it. A file that is damaged, or locked, keeps its
    # journal
    with contextlib.suppress(exc.DatabaseError), engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout=1000")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()


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
        if engine.url.database:
            _watch_file(engine, Path(engine.url.database))
    return engine


def _watch_file(engine: Engine, path: Path) -> None:
    """Refuses connections to a file that was removed: what is written there would be lost."""

    def note(_connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        record.info["file"] = identity(path)

    def check(_connection: sqlite3.Connection, record: ConnectionPoolEntry, _proxy: object) -> None:
        found = identity(path)
        if found is None:
            raise ConfigurationError(
                f"The database {path} has been removed while it was used. Stop the service, and put"
                " the file back, or start `syrtos serve --restore`."
            )
        if found != record.info["file"]:
            raise exc.DisconnectionError(f"{path} has been replaced.")

    event.listen(engine, "connect", note)
    event.listen(engine, "checkout", check)


def identity(path: Path) -> tuple[int, int] | None:
    """Returns what tells a file from another one of the same name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    """Sets up a new connection: concurrent readers beside a writer, and durable commits."""
    # transactions are begun by `writing`: the driver would begin them later, and as readers
    connection.isolation_level = None
    for pragma in ("busy_timeout=10000", "journal_mode=WAL", "synchronous=FULL"):
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
