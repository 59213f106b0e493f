"""The command line as a whole."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from syrtos import cli
from syrtos.cli import command_files


def test_each_subcommand_is_in_the_file_that_is_imported_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in command_files.names():
        with pytest.raises(SystemExit) as end:
            cli.main([name, "-h"])
        assert end.value.code == 0
    cli.main(["-h"])
    listed = [
        line.split()[0]
        for line in capsys.readouterr().out.rpartition("\ntrain:\n")[2].splitlines()
        if line[2:3].strip()
    ]
    known = set(command_files.names())
    assert {word for word in listed if word in known} == known


def test_a_command_without_standard_output_does_its_work(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rank-0.log"
    log.parent.mkdir()
    log.write_text("a line\n")
    (tmp_path / ".lock").write_text('{"pid": 1, "host": "", "machine": "", "born": 1}\n')
    command = f"{sys.executable} -m syrtos logs {tmp_path} >&-"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False)


def test_an_error_without_a_text_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise MemoryError

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 32, 1 << 32))
    monkeypatch.setattr("syrtos.cli.status.find_run_dir", lambda given: fail())
    assert cli.main(["status", "x"]) == 1
    assert capsys.readouterr().err.startswith("syrtos: MemoryError. This process is limited to")


def test_a_folder_of_another_user_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise PermissionError(errno.EACCES, "Permission denied", "/their/run/ledger")

    monkeypatch.setattr("syrtos.cli.status.find_run_dir", lambda given: fail())
    assert cli.main(["status", "x"]) == 1
    assert capsys.readouterr().err.startswith(
        "syrtos: this user may not use /their/run/ledger: Permission denied. Ask the owner"
    )
