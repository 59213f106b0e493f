"""Horovod's command line, as ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos.cli import main
from syrtos.cli.horovodrun import script_of
from syrtos.errors import ConfigurationError


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 0.1 -- x", "train.py --lr 0.1 -- x"),
        ("python3.11 -u train.py", "python -u train.py"),
        ("/usr/bin/python -m mpi4py train.py", "train.py"),
        ("train.py -v", "train.py -v"),
        ("-- python -W ignore train.py", "python -W ignore train.py"),
        ("python -m package x", "-m package x"),
    ],
)
def test_the_script_is_found(command: str, script: str) -> None:
    assert script_of(command.split()) == script.split()


@pytest.mark.parametrize("command", ["", "python", "python -c t.py"])
def test_other_commands_are_refused(command: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"Name the program to run|can't be run on workers"
    ):
        script_of(command.split())


def test_flags_become_ours(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.touch()
    flags = "-np 3 -H a:2,b:1 -p 2222 -i key --fusion-threshold-mb 8 --stall-check-shutdown-time-seconds 9 --output-filename /tmp/x"
    assert (
        main(
            [
                "horovodrun",
                *flags.split(),
                "--autotune",
                "--log-level",
                "INFO",
                "--dry-run",
                "python",
                str(script),
                "--x",
            ]
        )
        == 0
    )
    printed, said = capsys.readouterr()
    for part in (
        "# 2 processes on a,",
        "# 1 process on b,",
        "ssh -p 2222 -i key a ",
        '"bucket_mb": 8.0',
        '"timeout": 9.0',
        "t.py --x",
    ):
        assert part in printed
    assert "ignored, as for another engine: --autotune, --log-level" in said.replace(
        "--log-level, --autotune", "--autotune, --log-level"
    )


@pytest.mark.parametrize("flag", ["--slots-per-host=2", "--config-file=x", "--jsrun"])
def test_what_can_not_be_obeyed_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["horovodrun", "-np", "2", flag, "python", "t.py"]) == 2
    assert "can't be obeyed" in capsys.readouterr().err


def test_an_elastic_run_follows_its_hosts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "t.py"
    script.touch()
    elastic = [
        "--min-np",
        "1",
        "--max-np",
        "3",
        "--elastic-timeout",
        "9",
        "--blacklist-cooldown-range",
        "1",
        "2",
    ]
    discover = ["--host-discovery-script", "echo a:2; echo b:2"]
    command = [
        "horovodrun",
        "-np",
        "2",
        *elastic,
        *discover,
        "--reset-limit",
        "5",
        "--dry-run",
        "python",
        str(script),
    ]
    assert main(command) == 0
    printed, said = capsys.readouterr()
    assert "# 2 processes on a," in printed
    assert "# 1 process on b," in printed
    assert "--elastic-timeout" in said


def test_a_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(
        "import pathlib, sys\npathlib.Path('done').write_text(sys.argv[1])"
    )
    assert main(["horovodrun", "-np", "1", "python", "t.py", "x"]) == 0
    assert (tmp_path / "done").read_text() == "x"
