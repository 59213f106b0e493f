"""Buckets and objects, the part of S3 that jobs need, in a local folder or in a real S3 behind it.

In the folder, an object is a file that never changes, and a row of the index that names it.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import sqlalchemy as sql
from sqlalchemy import event, exc
from sqlalchemy.engine import RowMapping
from sqlalchemy.pool import ConnectionPoolEntry

from syrtos.checkpoint import durable
from syrtos.errors import ConfigurationError, DataError
from syrtos_jobs.complaints import complain
from syrtos_jobs.storage import object_index
from syrtos_jobs.storage.object_files import ObjectFiles
from syrtos_jobs.storage.object_index import buckets, objects
from syrtos_jobs.store.backups import fault_of, set_aside
from syrtos_jobs.store.database import (
    PATIENCE,
    checkpoint,
    identity,
    patiently,
    prepare_sqlite,
    writing,
)

_READ = 1 << 20
_LONGEST_UPLOAD = 7 * 86400.0
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclasses.dataclass(frozen=True)
class ObjectFacts:
    """The facts about one object.

    Attributes:
        size: bytes.
        etag: MD5 of the object's bytes in hex; of one with parts, MD5 of the parts' MD5s, and the
            number of parts.
        modified: seconds since 1970.
        headers: headers of the writer that readers get: ``content-type``, ``x-amz-meta-*``,
            ``x-amz-checksum-*``.
        blob: the file that holds the object, in a folder's store.
    """

    key: str
    size: int
    etag: str
    modified: float
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    blob: str = dataclasses.field(default="", compare=False)


class ObjectChangedError(Exception):
    """The present object is not the one that was to be replaced."""


class ObjectStore(abc.ABC):
    """Objects by bucket and key.

    Args:
        folder: the store's folder, for files that may become objects.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "incoming").mkdir(parents=True, exist_ok=True, mode=0o700)

    def incoming(self) -> Path:
        """Returns a new path for a file that may become an object."""
        return self.folder / "incoming" / secrets.token_hex(16)

    @abc.abstractmethod
    def buckets(self) -> list[tuple[str, float]]:
        """Returns the buckets' names, each with its creation time in seconds since 1970."""

    @abc.abstractmethod
    def make_bucket(self, bucket: str) -> bool:
        """Makes a bucket; False if it exists."""

    @abc.abstractmethod
    def remove_bucket(self, bucket: str) -> None:
        """Removes an empty bucket."""

    @abc.abstractmethod
    def has_bucket(self, bucket: str) -> bool:
        """Returns whether there is a bucket of this name."""

    @abc.abstractmethod
    def head(self, bucket: str, key: str) -> ObjectFacts | None:
        """Returns the facts about the object of this key; None if there is none."""

    @abc.abstractmethod
    def read(self, bucket: str, entry: ObjectFacts, start: int, stop: int) -> Iterator[bytes]:
        """Returns an object's bytes from ``start`` to before ``stop``, in pieces.

        The object is one that `head` or `list` has found.

        Raises:
            DataError: at once, if the object has been replaced or removed since.
        """

    @abc.abstractmethod
    def put(
        self,
        bucket: str,
        key: str,
        file: Path,
        etag: str,
        headers: dict[str, str],
        replaces: str | None = None,
    ) -> None:
        """Makes ``file``, a path of `incoming`, an object; the path is gone afterwards.

        Args:
            replaces: the ETag of the object that must be there before; empty: there must be none;
                None: no condition.

        Raises:
            ObjectChangedError: the condition is not met.
        """

    @abc.abstractmethod
    def list(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectFacts]:
        """Returns the first ``limit`` objects with keys after ``after`` that begin with ``prefix``.

        The objects are in the order of their keys.
        """

    @abc.abstractmethod
    def delete(self, bucket: str, key: str) -> None:
        """Removes an object if it exists."""

    def local_file(self, entry: ObjectFacts) -> Path | None:
        """Returns a local file that is the object and never changes; None if there is none."""
        return None

    def close(self) -> None:  # noqa: B027 - most keep nothing open
        """Ends the use of the store by this process; does nothing by default."""

    def all(self, bucket: str, prefix: str) -> Iterator[ObjectFacts]:
        """Yields the objects whose keys begin with ``prefix``, by key."""
        after = ""
        while page := self.list(bucket, prefix, after, 1000):
            yield from page
            after = page[-1].key

    def fetch(
        self, bucket: str, entry: ObjectFacts, path: Path, start: int = 0, stop: int | None = None
    ) -> None:
        """Copies an object, or bytes ``start`` to ``stop`` of it, into a file."""
        with path.open("wb") as file:
            for piece in self.read(bucket, entry, start, entry.size if stop is None else stop):
                file.write(piece)

    def upload(self, bucket: str, key: str, path: Path) -> None:
        """Copies a file into an object."""
        copy = self.incoming()
        digest = hashlib.md5(usedforsecurity=False)
        with path.open("rb") as source, copy.open("wb") as target:
            while piece := source.read(_READ):
                digest.update(piece)
                target.write(piece)
        self.put(bucket, key, copy, digest.hexdigest(), {})


class FolderStore(ObjectStore):
    """Objects in a folder of this machine, which several processes may share.

    The index that finds them is made from their files where it is missing, emptied or damaged.

    Args:
        folder: the store's folder.
        patience: for so many seconds an index that is locked is asked again.
    """

    def __init__(self, folder: Path, patience: float = PATIENCE) -> None:
        super().__init__(folder)
        self._files, self._patience = ObjectFiles(folder), patience
        self._index = folder / "index.sqlite"
        self._engine = sql.create_engine(f"sqlite:///{self._index}")
        # what was wrong with an index that is made anew, until that is said
        self._fault = ""
        event.listen(self._engine, "connect", self._open_index)
        event.listen(self._engine, "checkout", self._check_present)

    def buckets(self) -> list[tuple[str, float]]:
        """Reads the buckets from the index, by name."""
        rows = self._rows(sql.select(buckets).order_by(buckets.c.name))
        return [(row["name"], row["created"]) for row in rows]

    def make_bucket(self, bucket: str) -> bool:
        """Adds a bucket to the index; False if it exists.

        Raises:
            ConfigurationError: S3 would not allow the name.
        """
        check_bucket(bucket)
        try:
            with writing(self._engine, self._patience) as connection:
                connection.execute(sql.insert(buckets).values(name=bucket, created=time.time()))
                self._files.add_bucket(bucket)
        except exc.IntegrityError:
            return False
        return True

    def remove_bucket(self, bucket: str) -> None:
        """Removes a bucket from the index."""
        self._write(sql.delete(buckets).where(buckets.c.name == bucket))
        self._files.remove_bucket(bucket)

    def has_bucket(self, bucket: str) -> bool:
        """Returns whether the index has this bucket."""
        return any(name == bucket for name, _ in self.buckets())

    def head(self, bucket: str, key: str) -> ObjectFacts | None:
        """Reads the facts about an object from the index."""
        row = self._row(bucket, key)
        return _entry(row) if row else None

    def read(self, bucket: str, entry: ObjectFacts, start: int, stop: int) -> Iterator[bytes]:
        """Reads a part of an object's file."""
        try:
            file = self._files.blob(entry.blob).open("rb")
        except FileNotFoundError as error:
            raise DataError(
                f"s3://{bucket}/{entry.key} was replaced or removed while it was read."
            ) from error
        return _part(file, start, stop)

    def put(
        self,
        bucket: str,
        key: str,
        file: Path,
        etag: str,
        headers: dict[str, str],
        replaces: str | None = None,
    ) -> None:
        """Moves ``file`` to the object's files, and then changes its row in the index."""
        durable.force(file)
        with writing(self._engine, self._patience) as connection:
            found = connection.execute(
                sql.select(objects.c.blob, objects.c.etag).where(*_is(bucket, key))
            ).first()
            old, before = found or (None, "")
            # in the transaction: of two writers with one condition only the first succeeds
            if replaces is not None and replaces != before:
                file.unlink()
                raise ObjectChangedError
            row = dataclasses.asdict(self._files.add(file, bucket, key, etag, headers))
            if old is None:
                connection.execute(sql.insert(objects).values(**row))
            else:
                connection.execute(sql.update(objects).where(*_is(bucket, key)).values(**row))
        # readers that have it open read on
        if old is not None:
            self._files.remove(old)

    def list(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectFacts]:
        """Reads a page of objects from the index."""
        key = objects.c.key
        wanted = sql.select(objects).where(objects.c.bucket == bucket, key >= prefix, key > after)
        if prefix:
            # a range, which an index answers: the largest letter comes after all keys with the
            # prefix
            wanted = wanted.where(key < prefix + chr(0x10FFFF))
        return [_entry(row) for row in self._rows(wanted.order_by(key).limit(limit))]

    def delete(self, bucket: str, key: str) -> None:
        """Removes an object's row and its files."""
        row = self._row(bucket, key)
        self._write(sql.delete(objects).where(*_is(bucket, key)))
        if row:
            self._files.remove(row["blob"])

    def local_file(self, entry: ObjectFacts) -> Path | None:
        """Returns the object's file."""
        return self._files.blob(entry.blob)

    def close(self) -> None:
        """Leaves the whole index in its file, for those who copy it."""
        checkpoint(self._engine)

    # -- the index and the files ---------------------------------------------------------------

    def repair(self) -> None:
        """Makes a damaged or emptied index anew; the damaged one stays beside it."""
        fault = fault_of(self._index) if self._index.exists() else ""
        if fault:
            self._engine.dispose()
            aside = set_aside(self._index)
            self._fault = f"{fault}. It is made anew; the old one is {aside}."
        # a connection completes the index
        self.buckets()

    def sweep(self, older: float = 3600.0) -> None:
        """Takes up objects that the index does not name, and removes abandoned uploads.

        A process that was killed has left such objects, or the index is a copy of another day. Of
        objects, only the files of those that have been replaced are removed.

        Args:
            older: files that are younger, in seconds, are left alone: they may belong to a write
                that goes on. Uploads that were not completed within a week are removed.
        """
        for folder in (self.folder / "uploads").glob("*"):
            if time.time() - folder.stat().st_mtime > _LONGEST_UPLOAD:
                shutil.rmtree(folder, ignore_errors=True)
        for path in self.folder.glob("incoming/*"):
            if _is_older(path, older):
                path.unlink(missing_ok=True)
        with writing(self._engine, self._patience) as connection:
            named = set(connection.execute(sql.select(objects.c.blob)).scalars())
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            taken_up = sum(
                object_index.take_up(driver, self._files, found)
                for found in self._files.all(besides=named)
                if _is_older(self._files.blob(found.blob), older)
            )
        if taken_up:
            complain(f"{taken_up} objects in {self.folder} were not in the index, and are again.")
        if nameless := self._files.nameless(besides=named):
            complain(
                f"{nameless} files in {self.folder / 'blobs'} are named by nothing; they are kept."
            )

    def _open_index(self, connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        prepare_sqlite(connection, record)
        record.info["file"] = identity(self._index)
        found = object_index.complete(connection, self._files)
        if found or self._fault:
            complain(
                f"the index {self._index} {self._fault or 'was missing or empty:'} {found} objects"
                " were found again by their files."
            )
            self._fault = ""

    def _check_present(
        self, _connection: sqlite3.Connection, record: ConnectionPoolEntry, _proxy: object
    ) -> None:
        """Has a connection to a file opened again that is not the index any more."""
        if record.info.get("file") != identity(self._index):
            raise exc.DisconnectionError(f"{self._index} has been removed or replaced.")

    def _rows(self, chosen: sql.Executable) -> Sequence[RowMapping]:
        def read() -> Sequence[RowMapping]:
            with self._engine.connect() as connection:
                return connection.execute(chosen).mappings().all()

        return patiently(read, self._patience)

    def _row(self, bucket: str, key: str) -> RowMapping | None:
        rows = self._rows(sql.select(objects).where(*_is(bucket, key)))
        return rows[0] if rows else None

    def _write(self, statement: sql.Executable) -> None:
        with writing(self._engine, self._patience) as connection:
            connection.execute(statement)


def _is_older(path: Path, seconds: float) -> bool:
    return path.is_file() and time.time() - path.stat().st_ctime > seconds


def check_bucket(name: str) -> None:
    """Checks that S3 would take a bucket's name.

    Raises:
        ConfigurationError: it would not.
    """
    if not _BUCKET.fullmatch(name) or ".." in name:
        raise ConfigurationError(
            f"{name!r} is no name for a bucket: 3 to 63 lower-case letters, digits, dots and"
            " hyphens."
        )


def _part(file: IO[bytes], start: int, stop: int) -> Iterator[bytes]:
    with file:
        file.seek(start)
        while start < stop and (piece := file.read(min(_READ, stop - start))):
            start += len(piece)
            yield piece


def _is(bucket: str, key: str) -> Sequence[sql.ColumnElement[bool]]:
    return (objects.c.bucket == bucket, objects.c.key == key)


def _entry(row: RowMapping) -> ObjectFacts:
    return ObjectFacts(
        row["key"], row["size"], row["etag"], row["modified"], dict(row["headers"]), row["blob"]
    )
