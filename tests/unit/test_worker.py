"""Exit codes of scripts, as the system has them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from syrtos import worker


@pytest.mark.parametrize("number", [0, 1, 255, 256, -1, 2**40 + 3, 2**63, -(2**70)])
def test_the_code_is_that_of_a_plain_script(number: int) -> None:
    plain = subprocess.run([sys.executable, "-c", f"import sys; sys.exit({number})"], check=False)
    assert worker._system_code(number) == plain.returncode
