"""Packages that are installed, found without importing them."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path


@functools.cache
def is_installed(package: str) -> bool:
    """Returns whether Python finds a top-level package."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        # A package may be half installed; and `__main__` has no spec.
        return False


@functools.cache
def folder(package: str) -> Path | None:
    """Returns a package's folder without importing it; None if it is not installed."""
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    return Path(found.origin).parent if found and found.origin else None
