"""JSON in files that may be missing or damaged: documents, lines, and files of lines that grow."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard


class Tail:
    """A growing file of lines, which may not exist yet. Each call of `read` returns new lines."""

    def __init__(
        self, path: Path, is_sound: Callable[[Mapping[str, Any]], bool] = lambda line: True
    ) -> None:
        self._path, self._is_sound = path, is_sound
        self._read = 0

    def read(self) -> list[dict[str, Any]]:
        """Returns the lines that have been written since the last call, without damaged ones.

        A last line that is half written is left for a later call.
        """
        try:
            with open_regular(self._path) as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return []
        # a worker that was killed may have left half a line
        whole = new.rfind(b"\n") + 1
        self._read += whole
        return [
            found
            for line in new[:whole].splitlines()
            if (found := parse_line(line)) is not None and self._is_sound(found)
        ]


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading, which must be a regular one: a FIFO would wait for a writer.

    Raises:
        OSError: it can't be read, or is a FIFO, a device or a folder.
    """
    file = open(  # noqa: SIM115 the caller closes it
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Returns the object in a line; None if the line is damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Returns whether a value of a document is a finite number that can be calculated with."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a whole file.

    Raises:
        OSError: the file can't be read.
        ValueError: it is damaged, or holds something else than an object.
    """
    with open_regular(path) as file:
        data = file.read()
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return found


def document(path: Path) -> dict[str, Any]:
    """Returns the object in a whole file; empty if it is missing or damaged."""
    try:
        with open_regular(path) as file:
            return parse_line(file.read()) or {}
    except OSError:
        return {}
