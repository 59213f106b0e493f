"""The log of a worker and its report of a failure: files without which the worker goes on."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path


def begin(path: Path) -> Path:
    """Makes an empty log and returns its path; where it can't be made, that of the null device."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    except OSError as error:
        print(f"syrtos: {path} can't be written: {error.strerror}", file=sys.stderr, flush=True)
        return Path(os.devnull)
    return path


def append(path: Path, text: str) -> None:
    """Appends a text to a log, as far as there is room."""
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8", errors="replace") as log:
        log.write(text)


def write_failure(log: Path, facts: Mapping[str, object]) -> None:
    """Writes the facts of a failure beside a log, for a launcher that has lost the message."""
    with contextlib.suppress(OSError):
        if log != Path(os.devnull):
            log.with_suffix(".failure").write_text(json.dumps(facts))
