"""Helpers of each folder are importable by name; interrupts reach what tests start; long files come first; failures are named at once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

HELPERS = (".", "conformance", "contract", "e2e", "faults", "parity", "unit/data", "unit/jobs", "unit/report")
for folder in HELPERS:
    sys.path.insert(0, str(Path(__file__).parent / folder))

# A shell starts what runs in its background with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Whether this is one of several processes of pytest-xdist, whose reports another prints.
DIVIDED = "PYTEST_XDIST_WORKER" in os.environ

# The folders with the longest files come first, and those that mostly wait for hosts, or one of them would run alone at the end.
ORDER = {"parity": 0, "test_started_by_others": 1, "faults": 2}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts folders, which `--no-loadscope-reorder` keeps in this order."""
    items.sort(key=lambda item: ORDER.get(item.path.stem, ORDER.get(item.path.parent.name, len(ORDER))))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a test when it fails: a suite that is ended before its end would not say which it was."""
    if report.failed and not DIVIDED:
        crash = getattr(report.longrepr, "reprcrash", None)
        print(
            f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s): {crash.message if crash else ''}",
            flush=True,
        )
