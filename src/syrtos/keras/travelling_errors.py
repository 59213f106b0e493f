"""An error of one worker, written down and raised on another."""

from __future__ import annotations

import builtins
import contextlib
from typing import Any

import tensorflow as tf

from syrtos.errors import SyrtosError


def described(error: Exception) -> dict[str, Any]:
    """What `again` needs, as JSON values."""
    number = getattr(error, "errno", None) if isinstance(error, OSError) else None
    name = getattr(error, "filename", None)
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return {
        "type": type(error).__name__,
        "errno": number,
        "text": str(text),
        "file": name if isinstance(name, str) else None,
    }


def again(facts: dict[str, Any]) -> Exception:
    """An error of the same type and words as the writer's."""
    kind = getattr(builtins, facts["type"], None) or getattr(tf.errors, facts["type"], None)
    text = facts["text"]
    with contextlib.suppress(TypeError):
        if isinstance(kind, type) and issubclass(kind, tf.errors.OpError):
            return kind(None, None, text)
        if isinstance(kind, type) and issubclass(kind, OSError) and facts["errno"] is not None:
            return OSError(facts["errno"], text, facts["file"])
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(text)
    return SyrtosError(f"Another worker could not write the file: {facts['type']}: {text}")
