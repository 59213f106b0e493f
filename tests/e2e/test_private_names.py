"""The page on backends lists the private names of Keras and TensorFlow that are in use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "private_names.py"


@pytest.mark.slow
@pytest.mark.needs("tensorflow", "jax", "torch", "Keras 2")
def test_the_table_is_that_of_the_source() -> None:
    made = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
