"""The exit code of commands whose output nobody reads: in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import sys
print("x" * 100_000, flush=True)
raise SystemExit(3)
"""


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def run(script: Path, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "syrtos", "run", "--run-dir", "run", *words, script]
    return subprocess.run(command, check=False, cwd=script.parent, text=True, timeout=120, **how)


@pytest.mark.parametrize("lost", [closed_pipe, full])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_ends_with_its_own_code_and_one_line_about_lost_output(
    script: Path, lost: Callable[[], int], stream: str
) -> None:
    descriptor = lost()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: descriptor}
    ended = run(script, "--max-restarts", "0", **streams)
    os.close(descriptor)
    assert ended.returncode == 3
    words = {"stdout": "standard output", "stderr": "standard error"}[stream]
    said = ended.stderr if stream == "stdout" else ended.stdout
    assert said.count(f"syrtos: {words} (") == 1
    logs = script.parent / "run" / "logs"
    assert said.endswith(f"could not be written to: what workers have printed is in {logs}\n")
    assert "x" * 100_000 in (logs / "rank-0.log").read_text()


def test_a_run_without_any_stream_ends_with_its_own_code(script: Path) -> None:
    words = f'exec "{sys.executable}" -m syrtos run --run-dir run train.py <&- >&- 2>&-'
    ended = subprocess.run(["sh", "-c", words], check=False, cwd=script.parent, timeout=120)
    assert ended.returncode == 3
    assert "x" * 100_000 in (script.parent / "run" / "logs" / "rank-0.log").read_text()


def test_a_command_that_only_prints_ends_with_its_reader(tmp_path: Path) -> None:
    writer = closed_pipe()
    ended = subprocess.run(
        [sys.executable, "-m", "syrtos", "completion", "bash"],
        check=False,
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_script_that_closes_its_streams_ends_as_in_plain_python(script: Path) -> None:
    script.write_text("import sys\nsys.stderr = None\nprint('all of it')\nsys.stdout.close()\n")
    ended = run(script, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    assert "all of it" in ended.stdout


def test_a_failure_is_named_where_the_script_has_closed_its_streams(script: Path) -> None:
    script.write_text(
        "import sys\nsys.stderr = None\nsys.stdout.close()\nraise ValueError('the reason')\n"
    )
    ended = run(script, "--max-restarts", "0", capture_output=True)
    assert ended.returncode == 1
    assert "ValueError: the reason" in ended.stderr
