"""Fast tests first; helpers of each folder importable by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in (".", "contract", "parity", "e2e"):
    sys.path.insert(0, str(Path(__file__).parent / folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests run too, after the fast ones."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
