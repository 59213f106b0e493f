"""One launcher at a time in a run directory, and no other process is taken for it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from syrtos.errors import ConfigurationError
from syrtos.launch.run_lock import Launcher, is_going_on, launcher_of, taking_run_lock


def test_a_folder_in_which_a_run_is_going_on_takes_no_other(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            taking_run_lock(tmp_path),
            pytest.raises(
                ConfigurationError, match=rf"is going on\. Its launcher is process {os.getpid()}\."
            ),
            taking_run_lock(tmp_path),
        ):
            pass


def test_the_last_launcher_is_known(tmp_path: Path) -> None:
    assert launcher_of(tmp_path) is None
    assert not is_going_on(tmp_path)
    # the line of a longer name before leaves nothing behind
    (tmp_path / ".lock").write_text("x" * 1000)
    assert launcher_of(tmp_path) is None
    with taking_run_lock(tmp_path):
        assert is_going_on(tmp_path)
        found = launcher_of(tmp_path)
    assert found is not None
    assert found.is_same(Launcher.of(os.getpid(), in_background=False))
    assert (tmp_path / ".lock").read_text().count("\n") == 1
    facts = {name: str(value) for name, value in dataclasses.asdict(found).items()}
    assert Launcher.from_facts(facts) == found


def test_a_launcher_says_where_its_output_goes(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from syrtos.launch.run_lock import *\n"
        "with taking_run_lock(Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    for name, in_background in (("output.log", True), ("other", False)):
        with (tmp_path / name).open("wb") as file:
            subprocess.run(command, stdout=file, check=True)
        found = launcher_of(tmp_path)
        assert found is not None
        assert found.in_background == in_background
        assert not found.runs()
        assert not is_going_on(tmp_path)


def test_a_process_with_the_same_number_gets_no_signal(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        launcher = Launcher.of(process.pid, in_background=False)
        assert launcher.runs()
        recycled = dataclasses.replace(launcher, born=launcher.born - 1)
        other_boot = dataclasses.replace(launcher, machine="another")
        for other in (recycled, other_boot, dataclasses.replace(launcher, born=0)):
            assert not other.runs()
            assert not other.send(signal.SIGKILL)
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert launcher.is_suspended()
        process.send_signal(signal.SIGCONT)
        assert launcher.send(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
        assert not launcher.send(signal.SIGTERM)


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({"pid": "x"}), "null"])
def test_a_damaged_file_names_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / ".lock").write_text(text)
    assert launcher_of(tmp_path) is None
