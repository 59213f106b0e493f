"""Files that a script writes itself are named before `syrtos verify` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos.cli.verify import _print_writes
from syrtos.launch.program import Program

SCRIPT = """
import json, os, tempfile
from pathlib import Path
import keras
import syrtos
import helper

keras.callbacks.ModelCheckpoint("best.keras")
with open("history.csv", "a") as file:
    file.write("row")
if syrtos.rank() == 0:
    json.dump({}, open("result.json", "w"))
try:
    os.remove("old.csv")
except OSError:
    pass
open("data.csv")
open(tempfile.mkdtemp() + "/a", "w")
"""


@pytest.mark.parametrize("is_module", [False, True])
def test_each_write_is_named_by_its_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_module: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    Path("helper.py").write_text("def f(path):\n    path.write_text('x' * 3)\n")
    _print_writes(Program("train" if is_module else "train.py", is_module=is_module))
    assert capsys.readouterr().err.splitlines() == [
        "syrtos: the script itself writes files, and this check does not undo it:",
        "  train.py:9  open('history.csv', 'a')",
        "  train.py:12  open('result.json', 'w')",
        "  train.py:14  os.remove('old.csv')",
        "  helper.py:2  path.write_text('x' * 3)",
    ]


@pytest.mark.parametrize("text", ["import keras\nopen('a')\n", "open('a', 'w'\n"])
def test_nothing_is_said_of_scripts_that_write_nothing_or_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "train.py").write_text(text)
    _print_writes(Program(str(tmp_path / "train.py")))
    _print_writes(Program("no.such.module", is_module=True))
    assert capsys.readouterr().err == ""


def test_many_writes_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("open('a', 'w')\n" * 12)
    _print_writes(Program(str(tmp_path / "train.py")))
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[-1]) == (12, "  and 2 more")
