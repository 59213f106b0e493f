"""What a command line names, as Python itself would take it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from syrtos.errors import ConfigurationError, ScriptSyntaxError
from syrtos.launch.program import Program, check_script, parse

HERE = ".".join(map(str, sys.version_info[:2]))


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("train.py -m x", Program("train.py", ("-m", "x"))),
        ("-m package.module --lr 1", Program("package.module", ("--lr", "1"), is_module=True)),
        ("python train.py", Program("train.py")),
        (f"python{HERE} -u train.py -u", Program("train.py", ("-u",), flags=("-u",))),
        (f"{sys.executable} -m package", Program("package", is_module=True)),
        (
            "python3 -uWignore -X dev -m package x",
            Program("package", ("x",), True, ("-u", "-W", "ignore", "-X", "dev")),
        ),
        ("python3 -Om package", Program("package", is_module=True, flags=("-O",))),
        ("python3 -mpackage x", Program("package", ("x",), is_module=True)),
        ("python -m mpi4py train.py x", Program("train.py", ("x",))),
        ("python -m mpi4py -m package", Program("package", is_module=True)),
    ],
)
def test_programs(line: str, program: Program) -> None:
    assert parse(line.split()) == program
    assert parse(program.words) == Program(program.name, program.arguments, program.is_module)


@pytest.mark.parametrize(
    "line",
    ["", "python", "-m", "python -", "--lr 1", "python -c print(1)", "python -i t.py", "python -V"],
)
def test_what_is_no_program(line: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"Name the program to run|can't be run on workers"
    ):
        parse(line.split())


@pytest.mark.parametrize("python", ["python2", "python3.5", "/nowhere/bin/python"])
def test_another_python_is_refused(python: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"by {sys.executable}; the command asks for {python}"
    ):
        parse([python, "train.py"])


def test_a_module_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    Program("mine", is_module=True).check()
    Program("json.tool", is_module=True).check()
    with pytest.raises(ConfigurationError, match=r"no module nowhere \(looked in"):
        Program("nowhere.inside", is_module=True).check()


@pytest.mark.parametrize("text", ["def f(:", "return 1", "x = '"])
def test_a_syntax_error_is_refused_as_python_shows_it(tmp_path: Path, text: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True).stderr
    with pytest.raises(ScriptSyntaxError) as refused:
        Program(str(script)).check()
    assert str(refused.value) == shown


@pytest.mark.parametrize("name", ["module", "package", "package.inner"])
def test_a_syntax_error_of_a_module_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("raise SystemExit('it was imported')")
    file = {"module": "module.py", "package": "package/__main__.py"}.get(name, "package/inner.py")
    Program(name, is_module=True).check_syntax()
    (tmp_path / file).write_text("def f(:")
    with pytest.raises(ScriptSyntaxError, match=file):
        Program(name, is_module=True).check_syntax()


@pytest.mark.parametrize("text", ["x = '\\d'", "print('é')", "#!/usr/bin/env python\n"])
def test_what_python_runs_is_not_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "train").write_text(text)
    Program(str(tmp_path / "train")).check()


def test_an_archive_is_refused_with_what_to_do(tmp_path: Path) -> None:
    archive = tmp_path / "train.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("__main__.py", "print(1)")
    with pytest.raises(ConfigurationError, match=r"is an archive\. Unpack it"):
        check_script(archive)
