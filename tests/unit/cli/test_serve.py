"""How `syrtos serve` ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("after", ["serving training jobs", "page:"])
@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_ctrl_c_ends_it_quietly(tmp_path: Path, after: str, seconds: float) -> None:
    command = [sys.executable, "-m", "syrtos", "serve", "--port", "0", "--capacity", "1"]
    env = {**os.environ, "SYRTOS_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while after not in (line := process.stderr.readline()):
        assert line
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "syrtos: ended; running jobs continue" in said
