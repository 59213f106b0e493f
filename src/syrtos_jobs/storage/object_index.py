"""The index of a folder's objects: one table of objects, one of buckets, in SQLite.

It only makes finding objects fast: a missing index is made again from the objects' files.
"""

from __future__ import annotations

import json
import sqlite3

import sqlalchemy as sql
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from syrtos_jobs.storage.object_files import NamedBlob, ObjectFiles

_metadata = sql.MetaData()
buckets = sql.Table(
    "buckets",
    _metadata,
    sql.Column("name", sql.Text, primary_key=True),
    sql.Column("created", sql.Float),
)
objects = sql.Table(
    "objects",
    _metadata,
    sql.Column("bucket", sql.Text, primary_key=True),
    sql.Column("key", sql.Text, primary_key=True),
    sql.Column("blob", sql.Text, nullable=False),
    sql.Column("size", sql.Integer, nullable=False),
    sql.Column("etag", sql.Text, nullable=False),
    sql.Column("modified", sql.Float, nullable=False),
    sql.Column("headers", sql.JSON, nullable=False),
)
# `PRAGMA user_version` of an index that has all objects of its folder, each with its name in a file.
_COMPLETE = 1
_IS_COMPLETE = "PRAGMA user_version"


def complete(connection: sqlite3.Connection, files: ObjectFiles) -> int:
    """Makes an index of all objects in ``files``, unless it is one.

    Returns:
        The number of objects that it did not have.
    """
    if connection.execute(_IS_COMPLETE).fetchone()[0] == _COMPLETE:
        return 0
    connection.execute("BEGIN IMMEDIATE")
    try:
        # another process may have been faster
        is_new = connection.execute(_IS_COMPLETE).fetchone()[0] != _COMPLETE
        found = _fill(connection, files) if is_new else 0
        connection.execute(f"PRAGMA user_version = {_COMPLETE}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return found


def _fill(connection: sqlite3.Connection, files: ObjectFiles) -> int:
    for table in (buckets, objects):
        made = CreateTable(table, if_not_exists=True).compile(dialect=sqlite.dialect())
        connection.execute(str(made))
    # of an older version, whose objects had no files with their names
    for (bucket,) in connection.execute("SELECT name FROM buckets").fetchall():
        files.add_bucket(bucket)
    columns = "bucket, key, blob, size, etag, modified, headers"
    rows = connection.execute(f"SELECT {columns} FROM objects").fetchall()
    for *facts, headers in rows:
        files.name(NamedBlob(*facts, headers=json.loads(headers)))
    connection.executemany("INSERT OR IGNORE INTO buckets VALUES (?, ?)", files.buckets().items())
    return sum(take_up(connection, files, one) for one in files.all({row[2] for row in rows}))


def take_up(connection: sqlite3.Connection, files: ObjectFiles, found: NamedBlob) -> bool:
    """Adds an object that the index does not name, or removes its files if it was replaced.

    Returns:
        Whether it was added.
    """
    where = (found.bucket, found.key)
    row = connection.execute(
        "SELECT blob, modified FROM objects WHERE bucket = ? AND key = ?", where
    ).fetchone()
    if row and row[1] >= found.modified and files.blob(row[0]).exists():
        files.remove(found.blob)
        return False
    connection.execute(
        "INSERT OR IGNORE INTO buckets VALUES (?, ?)", (found.bucket, found.modified)
    )
    connection.execute(
        "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*where, found.blob, found.size, found.etag, found.modified, json.dumps(found.headers)),
    )
    return True
