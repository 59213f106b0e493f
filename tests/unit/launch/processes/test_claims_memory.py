"""The folder in memory by which workers meet: there while the launcher lives, and gone after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from syrtos.launch.processes.claims_memory import folder_in_memory
from syrtos.settings import CLAIMS_VARIABLE

KILLED = """
import os, signal, sys
from pathlib import Path
from syrtos.launch.processes.claims_memory import folder_in_memory
with folder_in_memory(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_lasts_as_long_as_its_launcher_lives(tmp_path: Path) -> None:
    with folder_in_memory(tmp_path) as variables:
        folder = Path(variables[CLAIMS_VARIABLE])
        (folder / "claim").touch()
        os.utime(folder, (1, 1))
        with folder_in_memory(tmp_path) as others:  # another run begins
            assert others != variables
        assert (folder / "claim").exists()
    assert list(tmp_path.iterdir()) == []


def test_that_of_a_launcher_that_was_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    with folder_in_memory(tmp_path):
        assert left.exists()  # its launcher may be about to lock it
    os.utime(left, (1, 1))
    with folder_in_memory(tmp_path):
        assert not left.exists()


def test_without_such_memory_there_is_none(tmp_path: Path) -> None:
    with folder_in_memory(tmp_path / "none") as variables:
        assert variables == {}
