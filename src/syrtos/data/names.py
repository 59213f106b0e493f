"""Names of files: which of them a pattern matches, and which hold data."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence


def is_remote(name: str) -> bool:
    """Returns whether a name is a URL of an object store or of the web."""
    return "://" in name and not name.startswith("file://")


def is_pattern(path: str) -> bool:
    """Returns whether a path has signs of a pattern, and so may name several files."""
    return any(sign in path for sign in "*?[")


def is_data(path: str) -> bool:
    """Returns whether a path, below the folder that was named, is that of a file with data."""
    # files that begin with `.` or `_` are about the data, and folders that begin with `.` belong to
    # tools
    *folders, name = path.split("/")
    return not name.startswith((".", "_")) and not any(folder.startswith(".") for folder in folders)


def folder_of(pattern: str) -> str:
    """Returns the folder, with its ``/``, below which all matches of a pattern lie."""
    fixed = min((pattern.index(sign) for sign in "*?[" if sign in pattern), default=len(pattern))
    return pattern[: pattern.rfind("/", 0, fixed) + 1]


def matches(path: str, pattern: str) -> bool:
    """Returns whether a pattern matches a path by the rules of Python's `glob`.

    ``*`` and ``?`` stay in a folder; ``**`` goes through any number of folders.
    """
    return _match(path.split("/"), pattern.split("/"))


def _match(names: Sequence[str], signs: Sequence[str]) -> bool:
    if not signs:
        return not names
    if signs[0] == "**":
        return any(_match(names[k:], signs[1:]) for k in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], signs[0]) and _match(names[1:], signs[1:])
