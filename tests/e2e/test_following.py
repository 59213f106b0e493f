"""`syrtos status`, `logs`, `stop` and `resume` follow whoever runs a run directory now."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SYRTOS = str(Path(sys.executable).with_name("syrtos"))
# Trains until it is told to stop: without Keras, so that it starts at once.
SCRIPT = """
import os, signal, sys
print("worker", os.environ.get("EPOCHS"), flush=True)
open(sys.argv[1], "w").close()
signal.pause()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the script; what is still running at the end is ended."""
    (tmp_path / "train.py").write_text(SCRIPT)
    yield tmp_path
    with contextlib.suppress(OSError, ValueError):
        os.kill(json.loads((tmp_path / "run" / ".lock").read_text())["pid"], signal.SIGKILL)


def syrtos(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Gives a command, and returns what it has printed."""
    return subprocess.run(
        [SYRTOS, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Starts a command in the foreground; ``terminal-PID`` is what it prints."""
    # exec(2) keeps the number of the process
    command = ["sh", "-c", 'exec "$@" > terminal-$$ 2>&1 < /dev/null', "sh", SYRTOS, *words]
    return subprocess.Popen(command, cwd=folder, text=True)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_launcher_that_runs_now_is_followed(folder: Path) -> None:
    """A run in the background is resumed there, then on a terminal, and stopped by two at once."""
    run = (folder / "run").resolve()
    began = syrtos(folder, "run", "--detach", "--run-dir", "run", "--max-restarts", "1", "train.py", "one")  # fmt: skip
    assert began.returncode == 0, began.stderr
    assert syrtos(folder, "status", "run").stdout == "Running: no training step yet.\n"
    wait_for((folder / "one").exists)
    assert "worker None\n" in syrtos(folder, "logs", "run").stdout
    first = json.loads((run / ".lock").read_text())["pid"]

    stopped = syrtos(folder, "stop", "run")
    assert stopped.returncode == 0
    assert stopped.stderr.splitlines() == [
        f"syrtos: Stop signal sent to launcher {first}; waiting…",
        f"syrtos: Stopped. `syrtos report {run}` says what happened.",
    ]
    assert syrtos(folder, "status", "run").returncode == 143

    (folder / "one").unlink()
    assert syrtos(folder, "resume", "--detach", "run").stdout == f"{run}\n"
    wait_for((folder / "one").exists)
    assert syrtos(folder, "logs", "run").stdout.count("worker None\n") == 2
    assert syrtos(folder, "stop", "run").returncode == 0

    (folder / "one").unlink()
    resumed = start(folder, "resume", "run")
    wait_for((folder / "one").exists)
    assert syrtos(folder, "status", "run").stdout == "Running: no training step yet, 2 restarts.\n"
    logs = syrtos(folder, "logs", "run")
    assert logs.stdout == "worker None\n"
    assert "the log of rank 0 follows" in logs.stderr
    for words in (("resume", "run"), ("run", "--run-dir", "run", "train.py", "one")):
        refused = syrtos(folder, *words)
        assert refused.returncode == 2
        assert (
            f"A run in {run} is going on. Its launcher is process {resumed.pid}." in refused.stderr
        )
    assert resumed.poll() is None

    both = [start(folder, "stop", "run"), start(folder, "stop", "run")]
    assert [each.wait(60) for each in both] == [0, 0]
    assert resumed.wait(60) == 143
    said = "".join((folder / f"terminal-{each.pid}").read_text() for each in both)
    assert said.count(f"Stop signal sent to launcher {resumed.pid}") == 1
    assert f"no run is going on in {run}. Stopped: 2 restarts." in syrtos(folder, "stop", "run").stderr  # fmt: skip


def test_a_launcher_that_was_killed_and_a_run_that_has_finished(folder: Path) -> None:
    run = (folder / "run").resolve()
    launched = start(folder, "run", "--run-dir", "run", "--max-restarts", "1", "train.py", "one")
    wait_for((folder / "one").exists)
    launched.kill()
    launched.wait()
    status = syrtos(folder, "status", "run")
    assert status.stdout == (
        f"The launcher ended without recording a result. See {run}/logs. `syrtos resume {run}`"
        " begins it anew, as it had no snapshot yet.\n"
    )
    assert status.returncode == 1
    assert syrtos(folder, "stop", "run").returncode == 0

    (folder / "train.py").write_text("import os; os.environ.get('EPOCHS'); print('whole')")
    resumed = syrtos(folder, "resume", "run", EPOCHS="7")
    assert resumed.returncode == 0, resumed.stderr
    assert "names have changed since the run was begun: EPOCHS.\n" in resumed.stderr
    assert syrtos(folder, "status", "run").stdout == "Finished: 1 restart.\n"
    assert syrtos(folder, "logs", "-f", "run").stdout == "whole\n"
    again = syrtos(folder, "resume", "run")
    assert again.returncode == 2
    assert "has finished: there is nothing to resume" in again.stderr


def test_of_two_runs_submitted_at_once_into_one_folder_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "syrtos", "run", "--detach", "--run-dir", "run", "train.py"]
    started = [
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    told = [process.communicate(timeout=60)[1] for process in started]
    try:
        assert sorted(process.returncode for process in started) == [0, 2, 2], told
        assert sum("is going on" in text for text in told) == 2
    finally:
        syrtos(tmp_path, "stop", "run")
