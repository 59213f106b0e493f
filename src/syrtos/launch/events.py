"""What workers tell the launcher: lines on their standard error, so that it works wherever MPI does.

A line is a mark and a JSON object. It needs no file system or port in common, and whoever reads the stream without a launcher
sees plain text.
"""

from __future__ import annotations

import json
import os
from typing import Any

MARK = b"\x1esyrtos "


def line(kind: str, rank: int, **facts: Any) -> bytes:
    """One event as it is written."""
    return MARK + json.dumps({"kind": kind, "rank": rank, **facts}).encode() + b"\n"


def parse(data: bytes) -> dict[str, Any] | None:
    """The event on a line, or None if it is ordinary output."""
    if not data.startswith(MARK):
        return None
    try:
        return json.loads(data[len(MARK) :])
    except ValueError:
        return None


def send(descriptor: int, kind: str, rank: int, **facts: Any) -> None:
    """Writes an event in one go, so that lines of several workers don't mix."""
    os.write(descriptor, line(kind, rank, **facts))
