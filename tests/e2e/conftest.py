"""What several tests of whole commands share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import chromium
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without a window, for the tests of a file."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium.PATH)
        yield found
        found.close()
