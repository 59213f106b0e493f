"""Helpers of each folder are importable by name; interrupts reach what tests start; long files come first."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

for folder in (".", "contract", "parity", "e2e"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

# A shell starts what runs in its background with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The folders with the longest files come first, or one of those would run alone at the end.
ORDER = {"parity": 0, "faults": 1}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts folders, which `--no-loadscope-reorder` keeps in this order."""
    items.sort(key=lambda item: ORDER.get(item.path.parent.name, len(ORDER)))
