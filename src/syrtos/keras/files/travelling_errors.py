"""An error of one worker, written down and raised on another."""

from __future__ import annotations

import builtins
import contextlib
import sys
from types import ModuleType
from typing import TypedDict

from syrtos.errors import SyrtosError


class ErrorFacts(TypedDict):
    """An error as JSON values."""

    type: str
    errno: int | None
    text: str
    file: str | None


def describe_error(error: Exception) -> ErrorFacts:
    """Returns the facts about an error that `error_from` needs."""
    number = getattr(error, "errno", None) if isinstance(error, OSError) else None
    name = getattr(error, "filename", None)
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return {
        "type": type(error).__name__,
        "errno": number,
        "text": str(text),
        "file": name if isinstance(name, str) else None,
    }


def error_from(facts: ErrorFacts) -> Exception:
    """Makes an error of the same type and words as the writer's.

    It is a SyrtosError where the type can't be made anew.
    """
    of_tensorflow: ModuleType | None = getattr(sys.modules.get("tensorflow"), "errors", None)
    kind = getattr(builtins, facts["type"], None) or getattr(of_tensorflow, facts["type"], None)
    text = facts["text"]
    with contextlib.suppress(TypeError):
        if of_tensorflow and isinstance(kind, type) and issubclass(kind, of_tensorflow.OpError):
            return kind(None, None, text)
        if isinstance(kind, type) and issubclass(kind, OSError) and facts["errno"] is not None:
            return OSError(facts["errno"], text, facts["file"])
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(text)
    return SyrtosError(f"Another worker could not write the file: {facts['type']}: {text}")
