"""Files with the state of a `fit` that has ended: a folder for each `fit`, with a file for each part.

The name of a file ends with the SHA-256 of its bytes: each worker writes its own parts, so that
nobody could write a manifest of all of them. A damaged file is renamed, and counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from syrtos.checkpoint import durable

_ENDING = ".safetensors"


def write(folder: Path, part: int, parts: int, data: bytes, writer: int) -> None:
    """Writes one of the ``parts`` parts of a state; its file appears whole.

    ``writer`` is the rank of the worker: hosts may share the folder, and then several write the
    same file.

    Raises:
        OSError: the folder can't be written to; nothing is left of the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{_beginning(part, parts)}{hashlib.sha256(data).hexdigest()}{_ENDING}"
    draft = folder / f".{writer}-{name}"
    try:
        durable.write(draft, data)
        draft.rename(folder / name)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def are_there(folder: Path) -> bool:
    """Returns whether there is a file for each part; the files are not read."""
    return any(all(each) for each in _files(folder))


def read(folder: Path) -> tuple[list[bytes], list[Path]]:
    """Returns the parts, and the files that are damaged.

    There are no parts unless all of them are there and undamaged.
    """
    damaged: list[Path] = []
    for files in _files(folder):
        parts = [_undamaged(each, damaged) for each in files]
        found = [part for part in parts if part is not None]
        if len(found) == len(files):
            return found, damaged
    return [], damaged


def put_aside(damaged: Sequence[Path]) -> None:
    """Renames damaged files, so that the state counts as missing and is written again."""
    for path in damaged:
        # another host, which shares the folder, may have renamed it
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"damaged-{path.name}"))


def _files(folder: Path) -> list[list[list[Path]]]:
    """Returns for each number of parts, and each of these parts, the files that hold it."""
    # as many parts as there were workers, which may have been others before
    counts = {
        int(path.name.split("-")[3])
        for path in folder.glob(f"part-*-of-*-*{_ENDING}")
        if path.name.split("-")[3].isdigit()
    }
    return [
        [sorted(folder.glob(f"{_beginning(part, count)}*{_ENDING}")) for part in range(count)]
        for count in sorted(counts)
    ]


def _undamaged(files: Sequence[Path], damaged: list[Path]) -> bytes | None:
    """Returns the bytes of the first file that is whole, or None; adds the others to ``damaged``."""
    for path in files:
        try:
            data = path.read_bytes()
        except OSError:
            damaged.append(path)
            continue
        if hashlib.sha256(data).hexdigest() == path.stem.rpartition("-")[2]:
            return data
        damaged.append(path)
    return None


def _beginning(part: int, parts: int) -> str:
    return f"part-{part}-of-{parts}-"
