"""How `syrtos serve` ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from syrtos.json_files import document


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


@pytest.mark.parametrize("closed", ["<&- >&-", "2>&-"])
def test_it_serves_where_its_streams_are_closed(tmp_path: Path, closed: str) -> None:
    env = {**os.environ, "SYRTOS_HOME": str(tmp_path / "home")}
    command = f"exec {sys.executable} -m syrtos serve --port 0 --capacity 1 {closed}"
    with subprocess.Popen(["bash", "-c", command], env=env) as process:
        deadline = time.monotonic() + 60
        while not (answers := _answers(tmp_path / "home")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
    assert answers


def _answers(home: Path) -> bool:
    """Returns whether the service of this folder answers."""
    url = document(home / "endpoint.json").get("url")
    if url is None:
        return False
    try:
        with urllib.request.urlopen(f"{url}/health"):
            return True
    except OSError:
        return False
