"""What the doctor has to say about one part of a machine."""

from __future__ import annotations

import dataclasses
from typing import Literal

Status = Literal["ok", "warning", "wrong"]


@dataclasses.dataclass(frozen=True)
class Check:
    """One part of a machine, or of its environment.

    Attributes:
        name: of the part; for another host it begins with the host's.
        status: ``"wrong"``: runs fail; ``"warning"``: some runs fail, or are slower than they could be.
        found: what was seen, in one sentence without its stop.
        fix: what to do, as a sentence; empty if all is well.
    """

    name: str
    status: Status
    found: str
    fix: str = ""


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name, "ok", found)


def warning(name: str, found: str, fix: str) -> Check:
    """Some runs fail, or are slower than they could be."""
    return Check(name, "warning", found, fix)


def wrong(name: str, found: str, fix: str) -> Check:
    """Runs fail."""
    return Check(name, "wrong", found, fix)
