"""Where the workers of the next generation come from."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syrtos.launch.standby import Imports, Standby

NOTHING = Imports({}, {})
CODE = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(str(os.getppid()))\n"


@pytest.fixture
def standby() -> Iterator[Standby]:
    with contextlib.closing(Standby()) as found:
        yield found


def parent_of_started(standby: Standby, folder: Path, *flags: str) -> int:
    """The parent of a process that it has started."""
    (folder / "module.py").write_text(CODE)
    command = (sys.executable, *flags, "-m", "module", str(folder / "parent"))
    env = {"PYTHONPATH": str(folder)}
    with open(os.devnull, "rb") as nothing:
        process = standby.start(command, env, nothing.fileno(), (nothing.fileno(), 1, 2))
    assert process.wait(60) == 0
    return int((folder / "parent").read_text())


def ready(standby: Standby) -> int:
    standby.prepare(NOTHING, {"PATH": os.environ["PATH"]})
    assert standby._zygote is not None
    while not standby._zygote.is_ready():
        time.sleep(0.01)
    return standby._zygote._process.pid


def test_new_interpreters_until_one_is_ready(standby: Standby, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parent_of_started(standby, tmp_path) == os.getpid()
    pid = ready(standby)
    assert parent_of_started(standby, tmp_path) == pid


def test_flags_of_the_interpreter_need_a_new_one(standby: Standby, tmp_path: Path) -> None:
    ready(standby)
    assert parent_of_started(standby, tmp_path, "-u") == os.getpid()


def test_one_that_has_died_is_replaced_when_the_workers_have_imported_again(standby: Standby, tmp_path: Path) -> None:
    first = ready(standby)
    assert ready(standby) == first
    assert standby._zygote is not None
    standby._zygote._process.kill()
    standby._zygote._process.wait()
    assert parent_of_started(standby, tmp_path) == os.getpid()
    assert ready(standby) != first


def test_one_that_does_not_answer_is_given_up(
    standby: Standby, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("syrtos.launch.standby._PATIENCE", 0.1)
    os.kill(ready(standby), signal.SIGSTOP)
    assert parent_of_started(standby, tmp_path) == os.getpid()
    assert "has not answered in 0.1 s" in capfd.readouterr().err
    assert standby._zygote is None


def test_one_that_still_imports_holds_up_no_end(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(600)")
    with contextlib.closing(Standby()) as standby:
        standby.prepare(Imports({"slow": ""}, {}), {"PYTHONPATH": str(tmp_path)})


def test_another_file_of_a_module_is_not_what_the_workers_have(standby: Standby) -> None:
    standby.prepare(Imports({"json": "/my/json.py"}, {}), {})
    assert standby._zygote is not None
    standby._zygote._process.wait()
    assert not standby._zygote.is_ready()
    assert "and was /my/json.py" in standby._zygote.said


def test_variables_are_those_of_the_import(standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may have removed some that the run began with."""
    given: list[dict[str, str]] = []
    monkeypatch.setattr("syrtos.launch.standby.Zygote", lambda modules, env: given.append(env) or OVER)
    env = {"KERAS_BACKEND": "jax", "HOME": "/h", "CUDA_VISIBLE_DEVICES": "1", "SYRTOS_SECRET": "s3cr3t"}
    standby.prepare(Imports({}, {"TF_ENABLE_ONEDNN_OPTS": "0"}), env)
    assert given == [{"TF_ENABLE_ONEDNN_OPTS": "0", "HOME": "/h", "CUDA_VISIBLE_DEVICES": "1"}]


class _Over:
    def lives(self) -> bool:
        return False

    def close(self) -> None:
        pass


OVER = _Over()
