"""The files that are sent with a search's script, and a digest of them.

They are the files beside the script, unless these are too many.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from syrtos_jobs.store.home import Home

_MOST_FILES = 2000
_MOST_BYTES = 64 << 20
_NO_SOURCE = {"__pycache__", "node_modules", "runs"}


def files_beside(script: Path, without: Collection[Path]) -> list[Path] | None:
    """Returns the files and folders beside a script to send with it.

    The result is None if they exceed 2000 files or 64 MiB.

    Args:
        without: resolved paths that are not sent, such as those of channels and outputs.
    """
    found = [
        path
        for path in sorted(script.parent.iterdir())
        if path.name != script.name and _travels(path, without)
    ]
    count = size = 0
    for file in _files(found, without):
        count, size = count + 1, size + file.stat().st_size
        if count > _MOST_FILES or size > _MOST_BYTES:
            return None
    return found


def digest(paths: Sequence[Path], without: Collection[Path]) -> str:
    """Returns a SHA-256 digest of the names, sizes and contents of up to 20,000 files."""
    found, room = hashlib.sha256(), _MOST_BYTES
    for number, file in enumerate(_files(paths, without)):
        if number >= 10 * _MOST_FILES:
            break
        facts = file.stat()
        room -= facts.st_size
        # beyond 2000 files or 64 MiB, the times of change stand for the contents
        known = (
            file.read_bytes()
            if room >= 0 and number < _MOST_FILES
            else str(facts.st_mtime_ns).encode()
        )
        found.update(
            f"\0{os.path.relpath(file, paths[0].parent)}\0{facts.st_size}\0".encode() + known
        )
    return found.hexdigest()


def staying(file: Path, facts: Mapping[str, object]) -> set[Path]:
    """Returns the paths that are not sent as source.

    They are the search's file, channels, outputs and the service's folder.
    """
    inputs = facts.get("inputs") or {}
    channels = list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]
    uris = [one.get("uri") if isinstance(one, Mapping) else one for one in channels]
    uris += [facts.get("output_path"), facts.get("checkpoint_s3_uri")]
    local = [
        str(uri).removeprefix("file://") for uri in uris if uri and not str(uri).startswith("s3://")
    ]
    return {path.resolve() for path in (file, Home().path, *map(Path, local))}


def _travels(path: Path, without: Collection[Path]) -> bool:
    # a folder with `pyvenv.cfg` is a virtual environment
    hidden = path.name.startswith(".") or path.name in _NO_SOURCE or (path / "pyvenv.cfg").exists()
    kind = not path.is_symlink() and (path.is_file() or path.is_dir()) and os.access(path, os.R_OK)
    # not `path.resolve()`, which fails on a link to itself
    here = Path(os.path.realpath(path))
    return kind and not hidden and not any(here == one or here in one.parents for one in without)


def _files(paths: Sequence[Path], without: Collection[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from _files(
                [one for one in sorted(path.iterdir()) if _travels(one, without)], without
            )
        else:
            yield path
