"""The files of a data set: named by paths, folders, patterns and URLs."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable

from syrtos.data import remote
from syrtos.data.cache import Cache
from syrtos.data.files import File, LocalFile, MissingFile
from syrtos.data.names import is_data, is_pattern, is_remote
from syrtos.errors import DataError

Pattern = str | os.PathLike[str]
Patterns = Pattern | Iterable[Pattern]


def find(patterns: Patterns, cache: Cache) -> list[File]:
    """Returns the files that ``patterns`` match, each once.

    The files of one pattern are in order of their names.

    Args:
        patterns: paths or URLs (``s3://``, ``gs://``, ``az://``, ``http(s)://``), each a file, a
            folder or a pattern with ``*``; ``**`` goes through folders. Files that begin with ``.``
            or ``_`` are left out of folders and patterns, and so are folders that begin with ``.``.
        cache: the cache that keeps pieces of remote files.

    Raises:
        DataError: no pattern was given, a pattern matches nothing, or all files are missing. A file
            named without ``*`` that is missing is otherwise a `MissingFile`.
    """
    several = [patterns] if isinstance(patterns, str | os.PathLike) else [*patterns]
    if not several:
        raise DataError("No files were given: name at least one file, folder or pattern.")
    found: dict[str, File] = {}  # by name: patterns may overlap, and each record is to be used once
    for pattern in (os.fspath(each) for each in several):
        matched = (
            remote.find(pattern, cache)
            if is_remote(pattern)
            else _local(pattern.removeprefix("file://"))
        )
        if not matched:
            raise DataError(
                f"No file matches {pattern!r}. Check the path; patterns may contain `*`, and `**`"
                " for folders below."
            )
        found |= {file.name: file for file in matched}
    if all(isinstance(file, MissingFile) for file in found.values()):
        raise DataError(f"{next(iter(found))} does not exist. Check the path.")
    return [*found.values()]


def _local(pattern: str) -> list[File]:
    if is_pattern(pattern):
        paths = [
            path for path in glob.glob(pattern, recursive=True) if is_data(os.path.basename(path))
        ]
    elif os.path.isdir(pattern):
        paths = [
            os.path.join(folder, name) for folder, _, names in os.walk(pattern) for name in names
        ]
        paths = [path for path in paths if is_data(os.path.relpath(path, pattern))]
    else:
        return [LocalFile(pattern) if os.path.isfile(pattern) else MissingFile(pattern)]
    # the order of the records must be the same on all workers, and that of a folder's entries may
    # differ
    return [LocalFile(path) for path in sorted(paths) if os.path.isfile(path)]
