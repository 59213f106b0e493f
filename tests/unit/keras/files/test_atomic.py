"""Files that several processes write under one name."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from syrtos.keras.files import atomic

_WRITER = """
import sys
from pathlib import Path
from syrtos.keras.files import atomic
path, files = sys.argv[1], sys.argv[2:]
for _ in range(60):
    atomic.write(path, lambda place: [Path(place + end).write_text("x" * 100) for end in files])
"""


def _pair(text: str) -> Callable[[str], None]:
    def write(place: str) -> None:
        for end in (".data", ".index"):
            Path(place + end).write_text(text)

    return write


@pytest.mark.parametrize("files", [[""], [".data", ".index"]], ids=["one file", "several"])
def test_writers_of_one_path_leave_each_other_alone(tmp_path: Path, files: list[str]) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "file"), *files]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [writer.communicate(timeout=300)[1] for writer in writers] == [""] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"file{end}" for end in files]


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    original = Path.mkdir

    def mkdir(self: Path, mode: int = 0o777) -> None:
        original(self, mode)
        made.append(self)
        if len(made) == 1:
            shutil.rmtree(self)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    atomic.write(str(tmp_path / "file"), lambda place: Path(place).write_text("whole"))
    assert len(made) == 2
    assert (tmp_path / "file").read_text() == "whole"


def test_what_other_names_and_living_writers_have_is_left(tmp_path: Path) -> None:
    dead, living = ".model.{}-00000001.partial", ".model.{}-00000002.partial"
    other_file, other_boot = ".model.keras.{}-00000003.partial", ".model.00000000-00000004.partial"
    boot = atomic._boot()
    for name in (dead, living, other_file, other_boot):
        (tmp_path / name.format(boot)).mkdir()
    old = tmp_path / ".model.00000000-00000005.partial"
    old.mkdir()
    os.utime(old, (0, 0))
    descriptor = os.open(tmp_path / living.format(boot), os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        atomic.write(str(tmp_path / "model"), lambda place: Path(place).write_text("whole"))
    finally:
        os.close(descriptor)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"model", living.format(boot), other_file.format(boot), other_boot}


def test_a_process_forked_while_a_file_is_written_holds_no_lock(tmp_path: Path) -> None:
    with atomic._folder_lock(tmp_path):
        sleeper = os.fork()
        if sleeper == 0:
            signal.pause()
            os._exit(0)
    try:
        with atomic._folder_lock(tmp_path) as held:
            assert held
    finally:
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)


def test_a_reader_leaves_the_version_after_the_one_it_settles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer puts the next version into the folder that a reader has just emptied."""
    complete, path = tmp_path / ".ckpt.complete", str(tmp_path / "ckpt")
    complete.mkdir()
    _pair("first")(str(complete / "ckpt"))
    force = atomic._force

    def next_version(folder: Path) -> None:
        monkeypatch.setattr(atomic, "_force", force)
        _pair("second")(str(complete / "ckpt"))

    monkeypatch.setattr(atomic, "_force", next_version)
    atomic.settle(path)
    assert (tmp_path / "ckpt.index").read_text() == "first"
    atomic.settle(path)
    assert [(tmp_path / f"ckpt{end}").read_text() for end in (".data", ".index")] == ["second"] * 2
    assert not complete.exists()
