"""Nothing of ours touches TensorFlow's context before the script has configured it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).parent / "scripts" / "configured.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "gpus",
        "horovod",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("native", "keras2")),
    ],
)
def test_the_script_configures_tensorflow(tmp_path: Path, first: str) -> None:
    command = [str(Path(sys.executable).parent / "syrtos"), "run", "-n", "2", "--oversubscribe"]
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path), SCRIPT, first],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "trained" in done.stdout
