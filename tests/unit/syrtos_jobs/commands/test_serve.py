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


def _refused(home: Path, *words: str) -> str:
    """What `syrtos serve` says that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "syrtos", "serve", *words],
        env={**os.environ, "SYRTOS_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_port_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "ports are numbers from 0 to 65535" in _refused(tmp_path, "--port", "80000")


def test_a_folder_of_jobs_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "can't be made" in _refused(tmp_path / "file", "--port", "0")


def test_a_second_service_says_so_although_the_address_of_the_first_is_lost(tmp_path: Path) -> None:
    env = {**os.environ, "SYRTOS_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "syrtos", "serve", "--port", "0"]
    with subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()
        (tmp_path / "endpoint.json").unlink()
        try:
            said = _refused(tmp_path, "--port", "0")
        finally:
            process.terminate()
    assert "whose endpoint.json there is missing or damaged" in said
