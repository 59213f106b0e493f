"""The files of a folder's objects: their bytes, and what they are.

``blobs/ab/ab12`` has the bytes of an object, ``names/ab/ab12`` its bucket, key and headers, and
``buckets/NAME`` stands for a bucket. The index of the objects can be made from these files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from syrtos.checkpoint import durable


@dataclasses.dataclass(frozen=True)
class NamedBlob:
    """An object, and the file that holds its bytes.

    Attributes:
        blob: the file's path below ``blobs``.
        modified: seconds since 1970.
    """

    bucket: str
    key: str
    blob: str
    size: int
    etag: str
    modified: float
    headers: dict[str, str]


class ObjectFiles:
    """The files of the objects in a folder.

    Args:
        folder: the store's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._blobs, self._names = folder / "blobs", folder / "names"
        self._buckets = folder / "buckets"

    def blob(self, name: str) -> Path:
        """Returns the file that holds an object's bytes."""
        return self._blobs / name

    def add(
        self, file: Path, bucket: str, key: str, etag: str, headers: dict[str, str]
    ) -> NamedBlob:
        """Moves ``file``, which is on the disk, to the blobs of an object, after naming it.

        A host that crashes has the old object or the new one.
        """
        blob = f"{file.name[:2]}/{file.name}"
        size = file.stat().st_size
        named = NamedBlob(bucket, key, blob, size, etag, time.time(), headers)
        self.name(named)
        path = self.blob(blob)
        # jobs may have a link to it: whoever writes to that must not change the object
        file.chmod(0o444)
        path.parent.mkdir(parents=True, exist_ok=True)
        file.rename(path)
        for folder in (self._names, self._blobs):
            durable.force(folder / blob[:2])
            durable.force(folder)
        return named

    def name(self, named: NamedBlob) -> None:
        """Writes down which object a blob is, if that is not written yet."""
        path = self._names / named.blob
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            durable.replace(path, json.dumps(dataclasses.asdict(named)).encode())

    def remove(self, blob: str) -> None:
        """Removes an object's bytes, and then its name."""
        for folder in (self._blobs, self._names):
            (folder / blob).unlink(missing_ok=True)

    def all(self, besides: Collection[str] = ()) -> Iterator[NamedBlob]:
        """Yields all objects but those of the blobs in ``besides``, the oldest first."""
        found = [self._read(blob) for blob in self._blob_names() if blob not in besides]
        yield from sorted(filter(None, found), key=lambda named: named.modified)

    def nameless(self, besides: Collection[str] = ()) -> int:
        """Returns the number of blobs of which nothing says what they are."""
        return sum(blob not in besides and self._read(blob) is None for blob in self._blob_names())

    def _blob_names(self) -> Iterator[str]:
        for path in self._blobs.glob("??/*"):
            yield f"{path.parent.name}/{path.name}"

    def _read(self, blob: str) -> NamedBlob | None:
        try:
            facts = json.loads((self._names / blob).read_bytes())
            return NamedBlob(**{**facts, "blob": blob, "size": self.blob(blob).stat().st_size})
        except (OSError, ValueError, TypeError):
            return None

    # -- buckets -------------------------------------------------------------------------------

    def add_bucket(self, bucket: str) -> None:
        """Writes down a bucket, if it is not written down yet."""
        self._buckets.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._buckets / bucket, os.O_CREAT | os.O_EXCL, 0o600))
            durable.force(self._buckets)

    def remove_bucket(self, bucket: str) -> None:
        """Forgets a bucket."""
        (self._buckets / bucket).unlink(missing_ok=True)

    def buckets(self) -> dict[str, float]:
        """Returns the buckets, with their creation times in seconds since 1970."""
        return {path.name: path.stat().st_mtime for path in self._buckets.glob("*")}
