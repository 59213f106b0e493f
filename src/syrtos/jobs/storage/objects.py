"""Buckets and objects, the part of S3 that jobs need, in a local folder or in a real S3 behind it.

In the folder, an object is a file that never changes (``blobs``) and a row that names it.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import sqlalchemy as sql
from sqlalchemy import event, exc
from sqlalchemy.engine import RowMapping

from syrtos.checkpoint.durable import force
from syrtos.errors import ConfigurationError, DataError
from syrtos.jobs.store.database import prepare_sqlite

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


_metadata = sql.MetaData()
_buckets = sql.Table(
    "buckets",
    _metadata,
    sql.Column("name", sql.Text, primary_key=True),
    sql.Column("created", sql.Float),
)
_objects = sql.Table(
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


class FolderStore(ObjectStore):
    """Objects in a folder of this machine, which several processes may share."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._engine = sql.create_engine(f"sqlite:///{folder / 'index.sqlite'}")
        event.listen(self._engine, "connect", prepare_sqlite)
        _metadata.create_all(self._engine)

    def buckets(self) -> list[tuple[str, float]]:
        """Reads the buckets from the index, by name."""
        with self._engine.connect() as connection:
            return [
                (row.name, row.created)
                for row in connection.execute(sql.select(_buckets).order_by(_buckets.c.name))
            ]

    def make_bucket(self, bucket: str) -> bool:
        """Adds a bucket to the index; False if it exists.

        Raises:
            ConfigurationError: S3 would not allow the name.
        """
        check_bucket(bucket)
        try:
            self._write(sql.insert(_buckets).values(name=bucket, created=time.time()))
        except exc.IntegrityError:
            return False
        return True

    def remove_bucket(self, bucket: str) -> None:
        """Removes a bucket from the index."""
        self._write(sql.delete(_buckets).where(_buckets.c.name == bucket))

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
            file = (self.folder / "blobs" / entry.blob).open("rb")
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
        """Moves ``file`` to the blobs, and then changes the object's row in the index."""
        blob = f"{file.name[:2]}/{file.name}"
        path = self.folder / "blobs" / blob
        path.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb+") as opened:
            # the file, and the entries that name it, are on the disk before the row: a host that
            # crashes has the old object or the new one
            os.fsync(opened.fileno())
            size = os.fstat(opened.fileno()).st_size
        # jobs may have a link to it (`local_file`): whoever writes to that must not change the
        # object
        file.chmod(0o444)
        file.rename(path)
        force(path.parent)
        force(path.parent.parent)
        row = {
            "blob": blob,
            "size": size,
            "etag": etag,
            "modified": time.time(),
            "headers": headers,
        }
        with self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            found = connection.execute(
                sql.select(_objects.c.blob, _objects.c.etag).where(*_is(bucket, key))
            ).first()
            old, before = found or (None, "")
            # in the transaction: of two writers with one condition only the first succeeds
            if replaces is not None and replaces != before:
                path.unlink()
                raise ObjectChangedError
            if old is None:
                connection.execute(sql.insert(_objects).values(bucket=bucket, key=key, **row))
            else:
                connection.execute(sql.update(_objects).where(*_is(bucket, key)).values(**row))
            connection.commit()
        # readers that have it open read on
        self._drop(old)

    def list(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectFacts]:
        """Reads a page of objects from the index."""
        key = _objects.c.key
        wanted = sql.select(_objects).where(_objects.c.bucket == bucket, key >= prefix, key > after)
        if prefix:
            # a range, which an index answers: the largest letter comes after all keys with the
            # prefix
            wanted = wanted.where(key < prefix + chr(0x10FFFF))
        with self._engine.connect() as connection:
            return [
                _entry(row)
                for row in connection.execute(wanted.order_by(key).limit(limit)).mappings()
            ]

    def delete(self, bucket: str, key: str) -> None:
        """Removes an object's row and its file."""
        row = self._row(bucket, key)
        self._write(sql.delete(_objects).where(*_is(bucket, key)))
        self._drop(row["blob"] if row else None)

    def local_file(self, entry: ObjectFacts) -> Path | None:
        """Returns the object's file."""
        return self.folder / "blobs" / entry.blob

    def sweep(self, older: float = 3600.0) -> None:
        """Removes orphaned files and abandoned uploads.

        Args:
            older: files that no row names are removed if they are older than this, in seconds:
                killed processes left them. Uploads that were not completed within a week are
                removed too.
        """
        for folder in (self.folder / "uploads").glob("*"):
            if time.time() - folder.stat().st_mtime > _LONGEST_UPLOAD:
                shutil.rmtree(folder, ignore_errors=True)
        with self._engine.connect() as connection:
            named = set(connection.execute(sql.select(_objects.c.blob)).scalars())
        for path in [*self.folder.glob("blobs/??/*"), *self.folder.glob("incoming/*")]:
            # young ones may belong to a write that goes on
            orphan = f"{path.parent.name}/{path.name}" not in named
            if orphan and path.is_file() and time.time() - path.stat().st_ctime > older:
                path.unlink(missing_ok=True)

    def _row(self, bucket: str, key: str) -> RowMapping | None:
        with self._engine.connect() as connection:
            return (
                connection.execute(sql.select(_objects).where(*_is(bucket, key))).mappings().first()
            )

    def _write(self, statement: sql.Executable) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.execute(statement)
            connection.commit()

    def _drop(self, blob: str | None) -> None:
        if blob is not None:
            (self.folder / "blobs" / blob).unlink(missing_ok=True)


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
    return (_objects.c.bucket == bucket, _objects.c.key == key)


def _entry(row: RowMapping) -> ObjectFacts:
    return ObjectFacts(
        row["key"], row["size"], row["etag"], row["modified"], dict(row["headers"]), row["blob"]
    )
