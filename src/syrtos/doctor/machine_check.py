"""A check of the doctor: the state of one part of a machine."""

from __future__ import annotations

import dataclasses
from typing import Literal

Status = Literal["ok", "warning", "wrong"]


@dataclasses.dataclass(frozen=True)
class Check:
    """The state of one part of a machine, or of its environment.

    Attributes:
        name: the name of the part; for another host it begins with the host's name.
        status: ``"ok"``; ``"wrong"`` if runs fail; ``"warning"`` if some fail, or are slower than
            they could be.
        found: the observation, as a sentence without its full stop.
        fix: the remedy, as a sentence; empty if all is well.
    """

    name: str
    status: Status
    found: str
    fix: str = ""


def ok(name: str, found: str) -> Check:
    """Returns the check of a part that is well."""
    return Check(name, "ok", found)


def warning(name: str, found: str, fix: str) -> Check:
    """Returns the check of a part that makes some runs fail, or slower than they could be."""
    return Check(name, "warning", found, fix)


def wrong(name: str, found: str, fix: str) -> Check:
    """Returns the check of a part that makes runs fail."""
    return Check(name, "wrong", found, fix)
