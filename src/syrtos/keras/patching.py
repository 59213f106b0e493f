"""Replacing functions of Keras and of its frameworks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


def replace(owner: Any, name: str, wrapper: Callable[[Method], Method]) -> None:
    """Replaces ``owner.name`` by ``wrapper(original)``."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrapper(original)))


def replace_everywhere(owner: Any, name: str, wrapper: Callable[[Method], Method], public: str | None = None) -> None:
    """Replaces a function also where other modules have imported it, under its own name or its ``public`` one."""
    original = getattr(owner, name)
    replace(owner, name, wrapper)
    for module in list(sys.modules.values()):
        for known in {name, public or name}:
            if getattr(module, "__dict__", {}).get(known) is original:  # a module that is blocked is None
                setattr(module, known, getattr(owner, name))
