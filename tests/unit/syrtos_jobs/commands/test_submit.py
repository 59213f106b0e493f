"""`syrtos submit`: what it refuses, and its end by a signal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from syrtos import cli

SLEEPS = "print('begun', flush=True)\nimport time\ntime.sleep(600)\n"


@pytest.mark.parametrize("word", ["=x", "NAME"])
def test_a_variable_needs_a_name_and_a_value(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    assert cli.main(["submit", str(tmp_path / "train.py"), "--env", word]) == 2
    assert f"`--env` is written NAME=VALUE. Received: {word!r}" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_job_and_is_the_exit_code(tmp_path: Path, number: int) -> None:
    (tmp_path / "train.py").write_text(SLEEPS)
    env = {**os.environ, "SYRTOS_HOME": str(tmp_path / "home")}
    # `nohup`, and a shell's background, leave processes with it ignored
    before = signal.signal(number, signal.SIG_DFL)
    process = subprocess.Popen(
        [sys.executable, "-m", "syrtos", "submit", "train.py", "--processes-per-host", "1"],
        cwd=tmp_path,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    signal.signal(number, before)
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "begun" in line:
            break
    process.send_signal(number)
    rest, _ = process.communicate(timeout=100)
    assert process.returncode == 128 + number, said + rest
    assert "Traceback" not in rest


def test_a_model_that_can_not_be_written_stays_where_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib\npathlib.Path(os.environ['SM_MODEL_DIR'], 'weights').write_text('w')\n"
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "job").touch()  # where the job's folder should be
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "syrtos", "submit", "train.py", "--processes-per-host", "1"),
            *("--name", "job", "--output", "out"),
        ],
        cwd=tmp_path,
        env={**os.environ, "SYRTOS_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    kept = re.search(
        r"can't be written \(Not a directory\)\. .* are still in\s+([^,]+)", done.stderr
    )
    assert kept, done.stderr
    assert (Path(kept[1].strip().rstrip(".")) / "weights").read_text() == "w"
