"""The run directory of a command that was given none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from syrtos import cli
from syrtos.cli.run_dirs import find_run_dir
from syrtos.errors import ConfigurationError
from syrtos.json_files import Tail, document


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_newest_is_taken_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for second, name in enumerate(
        ("20261124-101500-1a2b", "20261125-090000-0001", "digits", "no run")
    ):
        (folder / "runs" / name).mkdir(parents=True)
        if name != "no run":
            (folder / "runs" / name / "run.json").touch()
            os.utime(folder / "runs" / name / "run.json", (second, second))
    assert find_run_dir(None) == folder / "runs" / "digits"
    assert "the newest run, runs/digits" in capsys.readouterr().err
    assert find_run_dir(Path("runs/no run")) == folder / "runs" / "no run"


def test_without_any_run_an_error_says_what_to_name(folder: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"No run directory was named, and .*runs holds none"
    ):
        find_run_dir(None)


@pytest.mark.parametrize(
    "command", ["report", "status", "logs", "resume", "resize -n 2", "forecast"]
)
def test_commands_need_no_run_directory(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command.split()) == 2
    assert "No run directory was named" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "logs", "stop", "report", "resume"])
def test_a_circle_of_links_is_no_run_directory(
    command: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "circle").symlink_to("circle")
    assert cli.main([command, "./circle"]) != 0
    assert "circle" in capfd.readouterr().err


def test_a_file_that_no_process_writes_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "run.json")
    assert document(folder / "run.json") == {}
    assert Tail(folder / "run.json").read() == []
