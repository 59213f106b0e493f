"""Describes an error of a step in one line."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

# Marks of TensorFlow for its own tools, and colors, in messages of errors.
_NODE = re.compile(r"\{\{[^{}]*\}\} ?|\x1b\[[0-9;]*m")


def describe_error(error: Exception) -> str:
    """Returns the class of an error and the line of its message that names the cause."""
    lines = [line.strip() for line in _NODE.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        frames = traceback.extract_tb(error.__traceback__)[-1:]
        places = [f" in {Path(frame.filename).name}, line {frame.lineno}" for frame in frames]
        return "".join([type(error).__name__, *places])
    if lines[0].startswith("in user code"):  # autograph: what follows is a traceback
        return lines[-1][:300].rstrip(".")
    called = (
        lines[0].startswith("Exception encountered when calling") and len(lines) > 1
    )  # Keras, of a layer
    return f"{type(error).__name__}: {lines[1 if called else 0]}"[:300].rstrip(".")
