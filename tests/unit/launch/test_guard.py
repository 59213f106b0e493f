"""The process above a worker whose death the others survive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from syrtos.launch import events, guard


def guarded(run_dir: Path, code: str) -> tuple[int, dict[str, object] | None]:
    """The exit code of a guard, and the event that it sent."""
    program = f"import os, signal\nfrom syrtos.launch.guard import guard\nabove = guard(2, {str(run_dir)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300, check=False)
    sent = [event for line in done.stderr.splitlines() if (event := events.parse(line))]
    return done.returncode, sent[0] if sent else None


def test_a_worker_that_has_finished_is_not_lost(tmp_path: Path) -> None:
    assert guarded(tmp_path, "above.finished(); os._exit(0)") == (0, None)
    assert guard.lost(str(tmp_path)) == set()


@pytest.mark.parametrize(
    ("ending", "status", "code"),
    [("os._exit(0)", 0, 1), ("os._exit(3)", 3, 3), ("os.kill(os.getpid(), 9)", -9, 137), ("os.abort()", -6, 134)],
)
def test_a_worker_that_said_nothing_is_lost(tmp_path: Path, ending: str, status: int, code: int) -> None:
    assert guarded(tmp_path, ending) == (code, {"kind": "lost", "rank": 2, "code": status})
    assert guard.lost(str(tmp_path)) == {2}


def test_a_child_that_outlives_the_worker_is_not_waited_for(tmp_path: Path) -> None:
    ending = (
        "pid = os.fork()\nif pid == 0:\n    os.execvp('sleep', ['sleep', '60'])\nprint(pid, flush=True)\nos._exit(0)"
    )
    program = f"import os\nfrom syrtos.launch.guard import guard\nguard(2, {str(tmp_path)!r})\n{ending}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert process.wait(timeout=300) == 1
        os.kill(child, 9)


def test_a_folder_that_is_not_there_ends_no_server(tmp_path: Path) -> None:
    """On a host that does not share the run directory, or before anybody has died."""
    assert guard.lost(str(tmp_path / "nowhere")) == set()


def test_a_death_is_told_though_it_can_not_be_noted(tmp_path: Path) -> None:
    (tmp_path / "lost").touch()  # no folder
    assert guarded(tmp_path, "os._exit(3)") == (3, {"kind": "lost", "rank": 2, "code": 3})
