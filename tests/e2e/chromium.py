"""The browser of tests that look at pages."""

from __future__ import annotations

import shutil

import pytest

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDED = pytest.mark.skipif(PATH is None, reason="needs Chromium")
