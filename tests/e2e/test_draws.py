"""Random operations of TensorFlow that keep a counter of their own draw what they draw in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("scripts") / "draws.py"
SYRTOS = str(Path(sys.executable).with_name("syrtos"))


def numbers(folder: Path, *command: str) -> list[float]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("numbers "))
    return json.loads(line.removeprefix("numbers "))


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_a_batch_of_one_row_changes_no_draw_after_it(tmp_path: Path) -> None:
    alone = numbers(tmp_path, sys.executable, str(SCRIPT))
    many = numbers(tmp_path, SYRTOS, "run", "-n", "2", "--oversubscribe", str(SCRIPT))
    np.testing.assert_allclose(many, alone, rtol=1e-4)
