"""Wrong words on the command line are answered by one line, with what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos import cli


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "run --np 2 train.py",
            "syrtos: there is no option --np; did you mean `-n`? `syrtos run -h` explains.",
        ),
        (
            "run --num-processes=2 train.py",
            "there is no option --num-processes; did you mean `-n`?",
        ),
        ("run --n 2 train.py", "there is no option --n; did you mean `-n`?"),
        ("run --nworkers 2 train.py", "there is no option --nworkers; did you mean `-n`?"),
        ("run --num-workers 2 train.py", "there is no option --num-workers; did you mean `-n`?"),
        ("run --num_proc=2 train.py", "there is no option --num_proc; did you mean `-n`?"),
        ("run -H a:2 train.py", "there is no option -H; did you mean `--hosts`?"),
        ("run --min_workers 2 train.py", "did you mean `--min-workers`?"),
        ("forecast --nworkers 8", "did you mean `-n`? `syrtos forecast -h` explains."),
        ("resume runs/a --num-workers=3", "did you mean `-n`? `syrtos resume -h` explains."),
        ("report runs/a --tex --zzz", "there is no option --zzz. `syrtos report -h` explains."),
        ("run -n 2 --sync-batchnorms train.py", "did you mean `--sync-batchnorm`?"),
        ("run --zzz train.py", "syrtos: there is no option --zzz. `syrtos run -h` explains."),
        ("verify --gpus 2 train.py", "did you mean `-n`? `syrtos verify -h` explains."),
        (
            "rnu train.py",
            "syrtos: there is no command rnu; did you mean `run`? `syrtos -h` lists them.",
        ),
        (
            "train.py --epochs 3",
            "syrtos: to train a script write `syrtos run train.py --epochs 3`.",
        ),
        ("run", "the following arguments are required: script."),
        ("run --batch local train.py", "argument --batch: invalid choice: 'local'"),
        (
            "run --hosts a --hostfile b train.py",
            "argument --hostfile: not allowed with argument --hosts.",
        ),
        ("run -n two train.py", "argument -n: invalid int value: 'two'."),
        ("run --grace nan train.py", "argument --grace: invalid seconds value: 'nan'."),
        ("run --timeout -3 train.py", "argument --timeout: invalid seconds value: '-3'."),
        ("run --bucket-mb inf train.py", "argument --bucket-mb: invalid number value: 'inf'."),
    ],
)
def test_wrong_words(capsys: pytest.CaptureFixture[str], words: str, says: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert says in said
    assert said.count("\n") == 1


def test_options_behind_the_script_are_the_scripts(
    capsys: pytest.CaptureFixture[str], tmp_path: pytest.TempPathFactory
) -> None:
    script = f"{tmp_path}/train.py"
    with open(script, "w") as file:
        file.write("")
    assert (
        cli.main(["run", "-n2", "--oversubscribe", "--grace=3", "--dry-run", script, "--np", "3"])
        == 0
    )
    assert "train.py --np 3" in capsys.readouterr().out


def test_help_in_two_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run", "-h"], ["run", "-h", "all"]):
        with pytest.raises(SystemExit):
            cli.main(words)
    short, whole = capsys.readouterr().out.split("usage: ")[1:]
    assert "--staleness" not in short
    assert "--staleness" in whole
    assert sum(line.startswith("  -") for line in short.splitlines()) <= 18


def test_commands_are_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-h"]) == 0
    said = capsys.readouterr().out
    assert (
        said.index("\ntrain:\n")
        < said.index("  run  ")
        < said.index("look before and after:")
        < said.index("  doctor ")
    )


def test_a_current_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for words in (["status"], ["run", "train.py"], ["report"]):
        assert cli.main(words) == 2
        assert "`cd` to another one" in capsys.readouterr().err
