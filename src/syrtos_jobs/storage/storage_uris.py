"""URIs that data comes from and goes to.

``s3://`` is the service's object store, ``file://`` is this machine; there is no other kind.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from syrtos import settings
from syrtos.errors import ConfigurationError, DataError
from syrtos_jobs.storage.objects import FolderStore, ObjectFacts, ObjectStore, check_bucket
from syrtos_jobs.storage.remote_store import RemoteStore
from syrtos_jobs.store.database import PATIENCE
from syrtos_jobs.store.home import Home

_READ = 1 << 20


@dataclasses.dataclass(frozen=True)
class JobFile:
    """A file that a job reads.

    Attributes:
        uri: the file's URI.
        name: its path in the channel's folder.
        fetch: copies the file to a path.
        read: returns its bytes, in pieces.
        local: a file of this machine that holds the same bytes, if there is one.
    """

    uri: str
    name: str
    fetch: Callable[[Path], None]
    read: Callable[[], Iterator[bytes]]
    local: Path | None


class StorageURIs:
    """Reads and writes URIs.

    Args:
        objects: the store that ``s3://`` names.
        files: folders that ``file://`` may name; None: any that this user may read.
    """

    def __init__(self, objects: ObjectStore, files: list[Path] | None = None) -> None:
        self.objects = objects
        self._files = files

    def under(self, uri: str) -> list[JobFile]:
        """Returns the files under a prefix, or the one of this name, sorted by name.

        Raises:
            DataError: there is none, or a name would leave the channel's folder.
        """
        found = self._in_store(uri) if uri.startswith("s3://") else self._in_folder(uri)
        if not found:
            raise DataError(f"There is nothing under {uri}. Check the bucket and the prefix.")
        return found

    def text(self, uri: str) -> str:
        """Returns the text of a small file.

        Raises:
            DataError: it does not exist, or is no text.
        """
        try:
            return b"".join(self.one(uri).read()).decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{uri} should be a text in UTF-8: {error}.") from error

    def one(self, uri: str) -> JobFile:
        """Returns the file of exactly this name.

        Raises:
            DataError: it does not exist.
        """
        found = next((source for source in self.under(uri) if source.uri == uri), None)
        if found is None:
            raise DataError(f"There is no {uri}.")
        return found

    def exists(self, uri: str) -> bool:
        """Returns whether there is any file at or under a URI."""
        try:
            return bool(self.under(uri))
        except DataError:
            return False

    def upload(self, path: Path, uri: str) -> None:
        """Copies a file to a URI; its bucket or folder is made if it is missing."""
        if uri.startswith("s3://"):
            bucket, key = split(uri)
            if not self.objects.has_bucket(bucket):
                self.objects.make_bucket(bucket)
            self.objects.upload(bucket, key, path)
        else:
            target = self._path(uri)
            target.parent.mkdir(parents=True, exist_ok=True)
            # whoever reads at that moment gets the old file or the new one
            beside = target.with_name(f".{target.name}.new")
            try:
                shutil.copyfile(path, beside)
                beside.replace(target)
            except OSError:
                beside.unlink(missing_ok=True)  # half of it, on a full disk
                raise

    def remove(self, uri: str) -> None:
        """Removes the file at a URI."""
        if uri.startswith("s3://"):
            self.objects.delete(*split(uri))
        else:
            self._path(uri).unlink(missing_ok=True)

    def allow(self, uri: str) -> None:
        """Checks that a job may name this URI.

        Raises:
            ConfigurationError: it is of another kind, or outside the folders that are allowed.
        """
        if uri.startswith("s3://"):
            check_bucket(split(uri)[0])
        else:
            self._path(uri)

    def _in_store(self, uri: str) -> list[JobFile]:
        bucket, prefix = split(uri)
        # keys that end with a slash are the folders that some tools make
        entries = [
            entry for entry in self.objects.all(bucket, prefix) if not entry.key.endswith("/")
        ]

        def source(entry: ObjectFacts) -> JobFile:
            return JobFile(
                uri=f"s3://{bucket}/{entry.key}",
                name=safe_name(_relative(entry.key, prefix)),
                fetch=lambda path: self.objects.fetch(bucket, entry, path),
                read=lambda: self.objects.read(bucket, entry, 0, entry.size),
                local=self.objects.local_file(entry),
            )

        return [source(entry) for entry in entries]

    def _in_folder(self, uri: str) -> list[JobFile]:
        root = self._path(uri)
        try:
            found = [root] if root.is_file() else list(self._walk(root))
            paths = [path for path in found if path.is_file()]
            # One that is gone by now was a temporary file of a writer.
            odd = [path for path in found if not path.is_file() and os.path.lexists(path)]
        except PermissionError as error:
            raise ConfigurationError(
                f"{uri} can't be read by this service: {error.filename}: {error.strerror}. Let its"
                " user read the folder and what is in it."
            ) from error
        if odd:
            raise ConfigurationError(
                f"{uri} holds {odd[0]}, which is a link to nothing, a pipe or a device, and no file"
                " that a job can get. Remove it, or mend the link."
            )
        for path in paths:
            self._check_folder(path.resolve(), path.as_uri())

        def source(path: Path) -> JobFile:
            return JobFile(
                uri=uri if path == root else path.as_uri(),
                name=path.name if path == root else path.relative_to(root).as_posix(),
                fetch=lambda target: _copy_file(path, target),
                read=lambda: _pieces(path),
                local=path,
            )

        return [source(path) for path in paths]

    def _walk(self, folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
        """Yields what a folder and the folders in it hold, links to folders followed, in order.

        Args:
            folder: the folder.
            above: the places of the folders through which the path leads, links resolved.

        Raises:
            ConfigurationError: a link leads back to a folder that holds it, or out of the folders
                that are allowed.
        """
        above = (*above, folder.resolve())
        self._check_folder(above[-1], folder.as_uri())
        try:
            entries = sorted(folder.iterdir())
        except FileNotFoundError:
            return  # it is not there, or no longer
        for path in entries:
            if not path.is_dir():
                yield path
            elif path.resolve() in above:
                raise ConfigurationError(
                    f"{path} is a link to a folder that holds it, so that a job would get the"
                    " folder without an end. Remove the link."
                )
            else:
                yield from self._walk(path, above)

    def _path(self, uri: str) -> Path:
        parts = urllib.parse.urlsplit(uri)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"{uri} can't be read or written: syrtos knows s3://bucket/key and file:///path."
            )
        # resolved: a link must not lead out of the folders that are allowed
        path = Path(urllib.parse.unquote(parts.path)).resolve()
        self._check_folder(path, uri)
        return path

    def _check_folder(self, path: Path, uri: str) -> None:
        """Raises ConfigurationError unless a path without links is in a folder that is allowed."""
        if self._files is not None and not any(
            path.is_relative_to(folder) for folder in self._files
        ):
            raise ConfigurationError(
                f"{uri} is not in a folder that this service allows: start it with `syrtos serve"
                f" --files {path.parent}`, or use s3://."
            )


def split(uri: str) -> tuple[str, str]:
    """Returns bucket and key of an ``s3://`` URI.

    Raises:
        ConfigurationError: it names no bucket.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise ConfigurationError(f"{uri!r} is no s3://bucket/key.")
    return bucket, key


def safe_name(name: str) -> str:
    """Returns a relative path in its normal form, after a check that it stays inside its folder.

    Raises:
        DataError: it would not.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
        raise DataError(f"The name {name!r} would lead out of the folder it belongs to.")
    return str(path)


def _relative(key: str, prefix: str) -> str:
    """Returns the path of a key in a channel's folder."""
    # as SageMaker does, without the prefix, or without the folder of a prefix that ends in a name
    if key.startswith(prefix.rstrip("/") + "/") and prefix:
        return key[len(prefix.rstrip("/")) + 1 :]
    return key[prefix.rfind("/") + 1 :]


def manifest(text: str) -> tuple[str, list[str]]:
    """Returns the prefix and the names that a manifest lists.

    A manifest has the form ``[{"prefix": "s3://bucket/p/"}, "a", "b"]``.

    Raises:
        DataError: it is no such list.
    """
    try:
        first, *names = json.loads(text)
        return "" + first["prefix"], [str(name) for name in names]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(
            'A manifest is a JSON list [{"prefix": "s3://..."}, "name", ...]. Received:'
            f" {text[:100]!r}."
        ) from error


def _copy_file(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_READ):
            yield piece


def store_of(home: Home, patience: float = PATIENCE) -> ObjectStore:
    """Returns a service's object store: that of SYRTOS_S3_ENDPOINT, or a folder of its own.

    SYRTOS_S3_ENDPOINT is an address, or ``aws``.

    Args:
        home: the service's folder.
        patience: for so many seconds an index that is locked is asked again.
    """
    endpoint = settings.environment().get("SYRTOS_S3_ENDPOINT")
    if endpoint:
        return RemoteStore(home.objects, "" if endpoint == "aws" else endpoint)
    return FolderStore(home.objects, patience)
