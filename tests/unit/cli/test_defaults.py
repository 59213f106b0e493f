"""syrtos.toml: what it adds to the words of `syrtos run`, and what is wrong in it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from syrtos import cli
from syrtos.cli import defaults, init
from syrtos.cli.parsing import Parser
from syrtos.engines.registry import engine_of
from syrtos.errors import ConfigurationError


@pytest.fixture
def parser() -> Parser:
    """The parser of `syrtos run`."""
    return cli._commands_of(cli.parser("run")).choices["run"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def added(parser: Parser, file: str, typed: str = "") -> str:
    Path(defaults.FILE).write_text(file)
    return " ".join(defaults.added_words(parser, [*typed.split(), "train.py", "--n", "1"]))


@pytest.mark.parametrize(
    ("file", "typed", "words"),
    [
        ("", "", ""),
        ("[run]\nn = 4\nsync-batchnorm = true\nshard-update = false", "", "-n 4 --sync-batchnorm"),
        ("[run]\nn = 4\ngrace = 5\ntimeout = 1.5", "-n2", "--grace 5 --timeout 1.5"),
        ("[run]\ntrack = ['mlflow', 'jsonl']", "", "--track mlflow --track jsonl"),
        ("[run]\ntrack = ['mlflow', 'jsonl']\nenv = 'A'", "--track otlp", "--env A"),
        ("[run]\nhosts = 'a:2'\nn = 2", "--hostfile hosts", "-n 2"),
        ("[run]\nhosts = 'a:2'\nn = 2\n[ray]\nwait = 3", "--on ray", "-n 2 --with wait=3"),
        ("[run]\non = 'slurm'\n[slurm]\ntime = '2:00:00'\nexclusive = true\n[ray]\nwait = 1", "",
         "--on slurm --with time=2:00:00 --with exclusive=true"),
        ("[run]\non = 'slurm'\ngpus-per-worker = 1\n[slurm]\ntime = '2:00:00'", "--hosts a:2", ""),
        ("[run]\ngpus-per-worker = 1\nn = 2", "", "-n 2"),
        ("[run]\ngpus-per-worker = 1\nn = 2", "--on slurm", "--gpus-per-worker 1 -n 2"),
        ("[run]\nssh = '-x'", "", "--ssh=-x"),
    ],
)  # fmt: skip
def test_the_words_that_the_file_adds(
    folder: Path, parser: Parser, file: str, typed: str, words: str
) -> None:
    assert added(parser, file, typed) == words


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (
            "[run]\nsync_batchnorm = true",
            "there is no option `sync_batchnorm`; did you mean `sync-batchnorm`?",
        ),
        ("[run]\nworkers = 4", "there is no option `workers`; did you mean `n`?"),
        ("[run]\nwith = 'time=1'", "there is no option `with`"),
        ("[run]\nn = '4'", "`n` must be a whole number. Received: '4'."),
        ("[run]\nn = true", "`n` must be a whole number. Received: True."),
        ("[run]\ngrace = 'long'", "`grace` must be a number. Received: 'long'."),
        ("[run]\nsync-batchnorm = 1", "`sync-batchnorm` must be true or false. Received: 1."),
        ("[run]\nhosts = ['a:2']", "`hosts` must be a text in quotes. Received: ['a:2']."),
        (
            "[run]\nbatch = 'local'",
            '`batch` must be one of "global", "per-worker". Received: \'local\'.',
        ),
        ("[run]\non = 4", "`on` must be a text in quotes. Received: 4."),
        (
            "[run]\non = 'slurm'\n[slurm]\ntime = [2]",
            "`time` of [slurm] must be a text or a number. Received: [2].",
        ),
        ("n = 4", "`n` stands in no table: write it below a line `[run]`."),
        ("[kubernets]\nimage = 'i'", "there is no table [kubernets]; did you mean `kubernetes`?"),
        ("[run\n", "syrtos.toml of this folder can't be read: "),
        ('[run]\nrun-dir = "x\\u0000y"', "`run-dir` must be a text in quotes."),
    ],
)
def test_what_is_wrong_in_the_file(folder: Path, parser: Parser, file: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)) as raised:
        added(parser, file)
    assert "\n" not in str(raised.value)


def test_the_typed_command_reads_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(defaults.FILE).write_text("[run]\nn = 3\noversubscribe = true\nbatch = 'per-worker'")
    words = ["run", "-n", "2", "--dry-run", "train.py"]
    monkeypatch.setattr(sys, "argv", ["syrtos", *words])
    assert cli.main() == 0
    printed = capsys.readouterr()
    assert printed.err == "syrtos: using syrtos.toml: --oversubscribe --batch per-worker\n"
    assert printed.out.startswith("# 2 processes")
    assert '"batch": "per-worker"' in printed.out
    # A program has said all that it wants.
    assert cli.main(words) == 0
    printed = capsys.readouterr()
    assert not printed.err
    assert '"batch": "global"' in printed.out


def test_an_engine_gets_the_files_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    Path(defaults.FILE).write_text(
        "[run]\nn = 3\non = 'slurm'\nbatch = 'per-worker'\n[slurm]\ntime = '2:00:00'"
    )
    monkeypatch.setattr(
        sys, "argv", ["syrtos", "run", "--with", "time=1:00:00", "--dry-run", "train.py"]
    )
    assert cli.main() == 0
    script = capsys.readouterr().out
    assert "#SBATCH --time=1:00:00\n" in script
    assert " -n 3 --batch per-worker train.py &\n" in script


def test_all_that_init_proposes_is_taken(
    folder: Path, parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init"]) == 0
    assert " ".join(defaults.added_words(parser, ["train.py"])) == "-n 2"
    proposed: dict[str, Any] = tomllib.loads(
        re.sub(r"^# (?=[\w-]+ = )", "", init.TEMPLATE, flags=re.M)
    )
    assert len(proposed["run"]) >= 9
    json.dumps([*defaults.words_of(proposed, parser, {})])
    for engine in ("slurm", "kubernetes", "ray"):
        assert proposed[engine]
        assert proposed[engine].keys() <= engine_of(engine).settings.keys()
    assert cli.main(["init"]) == 2
    assert "syrtos: This folder has a syrtos.toml already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "added"),
    [
        ({"n": 8}, "-n 8"),
        ({"hosts": "alpha:2,beta:2", "n": 4}, "-n 4 --hosts alpha:2,beta:2"),
        ({"on": "slurm", "n": 3}, "-n 3 --on slurm"),
        (
            {"hosts": "alpha.example.com:8,beta.example.com:8"},
            "-n 2 --hosts alpha.example.com:8,beta.example.com:8",
        ),
    ],
)
def test_answers_are_written_into_the_file(
    folder: Path, parser: Parser, values: dict[str, str | int], added: str
) -> None:
    Path(defaults.FILE).write_text(init.filled_in(values))
    assert " ".join(defaults.added_words(parser, ["train.py"])) == added


def test_a_terminal_is_asked(folder: Path, parser: Parser) -> None:
    main, other = pty.openpty()
    asked = subprocess.Popen(
        [Path(sys.executable).parent / "syrtos", "init"], stdin=other, stdout=other, stderr=other
    )
    os.close(other)
    for answer in ("hosts", "not a host:x", "alpha:2,beta:3", "", ""):
        os.write(main, answer.encode() + b"\n")
    assert asked.wait(60) == 0
    os.close(main)
    assert " ".join(defaults.added_words(parser, ["train.py"])) == "-n 5 --hosts alpha:2,beta:3"


def test_questions_that_are_not_answered(folder: Path) -> None:
    main, other = pty.openpty()
    asked = subprocess.Popen(
        [Path(sys.executable).parent / "syrtos", "init"],
        stdin=other,
        stdout=other,
        stderr=subprocess.PIPE,
    )
    os.close(other)
    os.write(main, b"\x04")  # Ctrl-D
    said = asked.communicate(timeout=60)[1]
    os.close(main)
    assert asked.returncode == 2
    assert b"nothing was written" in said
    assert not Path(defaults.FILE).exists()


def test_a_mark_of_the_encoding_is_no_error(folder: Path, parser: Parser) -> None:
    Path(defaults.FILE).write_bytes(b"\xef\xbb\xbf[run]\nn = 3\n")
    assert defaults.added_words(parser, ["train.py"]) == ["-n", "3"]


def test_a_link_that_leads_nowhere_is_named(
    folder: Path, parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(defaults.FILE).symlink_to("gone")
    assert defaults.added_words(parser, ["train.py"]) == []
    assert "syrtos.toml of this folder is no file, and is not used" in capsys.readouterr().err
