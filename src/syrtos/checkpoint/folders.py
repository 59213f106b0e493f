"""Snapshots in files: a folder for each, complete or not there, with digests; two are kept.

``snapshot-12/`` holds ``part-0.safetensors`` and so on, and ``manifest.json`` with the SHA-256 of
each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from syrtos.checkpoint import durable
from syrtos.checkpoint.head import facts_of
from syrtos.errors import SnapshotError

_KEPT = 2  # so that there is another one if the newest turns out to be damaged


class SnapshotMemory(Protocol):
    """The place of snapshots before they are in files.

    It is `syrtos.checkpoint.slots.Slots`, or the memory of other hosts.
    """

    def committed_number(self) -> int:
        """Returns the number of the newest snapshot; 0 if there is none."""
        ...

    def parts(self, number: int) -> int:
        """Returns the number of parts of a snapshot."""
        ...

    def pieces(self, part: int, number: int) -> Iterator[bytes]:
        """Yields a part of a snapshot, in pieces."""
        ...

    def write(self, part: int, number: int, parts: int, *pieces: bytes | memoryview) -> None:
        """Writes a part of a snapshot, whose pieces follow each other."""
        ...


_PREFIX, _MANIFEST = "snapshot-", "manifest.json"


def save(slots: SnapshotMemory, folder: Path) -> int:
    """Writes the newest committed snapshot into ``folder``, unless it is there; workers may go on.

    Returns:
        The snapshot's number; 0 if there is none.

    Raises:
        BlockingIOError: workers have replaced it in the meantime; the next will do.
        OSError: the folder can't be written to.
    """
    number = slots.committed_number()
    if number == 0 or _snapshot_folder(folder, number).exists():
        return number
    # a name that `numbers` does not see: the folder gets its own once everything in it is on disk
    draft = folder / f".{_PREFIX}{number}"
    _remove(draft)
    draft.mkdir(parents=True)
    try:
        digests = [
            _copy(slots, part, number, draft / _name(part)) for part in range(slots.parts(number))
        ]
        durable.write(draft / _MANIFEST, json.dumps({"number": number, "sha256": digests}).encode())
        durable.force(draft)  # the entries of the parts, before the folder counts as a snapshot
        draft.rename(_snapshot_folder(folder, number))
    except BaseException:
        _remove(draft)
        raise
    durable.force(folder)
    for old in numbers(folder)[_KEPT:]:
        _remove(_snapshot_folder(folder, old))
    return number


def load(folder: Path, slots: SnapshotMemory) -> tuple[int, list[str]]:
    """Puts the newest undamaged snapshot of ``folder`` into the slots; damaged ones are renamed.

    Returns:
        The snapshot's number, 0 if there is none; and a sentence for each newer one that was passed
        over.
    """
    complaints: list[str] = []
    for number in numbers(folder):
        try:
            # all parts are checked before the first is written: the slots may hold a good snapshot
            parts = list(_parts(_snapshot_folder(folder, number)))
        except (OSError, ValueError, KeyError, SnapshotError) as error:
            place = _snapshot_folder(folder, number)
            aside = place.with_name(f"damaged-{number}")
            _remove(aside)
            now = ""
            with contextlib.suppress(OSError):  # the disk may be full, or not to be written to
                place.rename(aside)
                now = f", and is {aside} now"
            complaints.append(f"{place} is not used{now}: {error}")
            continue
        for part, data in enumerate(parts):
            slots.write(part, number, len(parts), data)
        return number, complaints
    return 0, complaints


def forget(folder: Path) -> None:
    """Removes all snapshots, and what else was kept of the run; other files in the folder stay."""
    for pattern in (f"{_PREFIX}[0-9]*", f".{_PREFIX}[0-9]*", "fit-[0-9]*", "damaged-[0-9]*"):
        for path in folder.glob(pattern):
            _remove(path)
    with contextlib.suppress(OSError):  # something else is in it
        folder.rmdir()


def _remove(path: Path) -> None:
    """Removes a folder, or what stands in its place, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _parts(place: Path) -> Iterator[bytes]:
    for part, digest in enumerate(_digests(place)):
        data = (place / _name(part)).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise SnapshotError(
                f"{_name(part)} is damaged: it has another SHA-256 than was written."
            )
        facts_of(data)  # raises where there are none: such a part counts as damaged too
        yield data


def _digests(place: Path) -> list[str]:
    """Returns the digest of each part of a snapshot.

    Raises:
        OSError: the manifest can't be read.
        SnapshotError: it is damaged, or does not name all parts that are there.
    """
    try:
        found = json.loads((place / _MANIFEST).read_bytes())["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotError(f"{_MANIFEST} is damaged: {error}.") from error
    if not found or not isinstance(found, list) or len(found) != len(list(place.glob(_name("*")))):
        raise SnapshotError(f"{_MANIFEST} is damaged: it does not name the parts that are there.")
    return [str(digest) for digest in found]


def _copy(slots: SnapshotMemory, part: int, number: int, path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in slots.pieces(part, number):
            digest.update(piece)
            file.write(piece)
    durable.force(path)
    return digest.hexdigest()


def numbers(folder: Path) -> list[int]:
    """Returns the numbers of the snapshots that are there, the newest first."""
    found = []
    with contextlib.suppress(OSError):
        found = [
            name.removeprefix(_PREFIX) for name in os.listdir(folder) if name.startswith(_PREFIX)
        ]
    return sorted((int(number) for number in found if number.isdecimal()), reverse=True)


def first_part(folder: Path, number: int) -> Path:
    """Returns the path of the first part of a snapshot."""
    return _snapshot_folder(folder, number) / _name(0)


def _snapshot_folder(folder: Path, number: int) -> Path:
    return folder / f"{_PREFIX}{number}"


def _name(part: int | str) -> str:
    return f"part-{part}.safetensors"
