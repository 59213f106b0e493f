"""The scripts by which shells complete the command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from syrtos import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("verify", "sync-batchnorm", "per-worker"))


def test_bash_completes_commands_options_and_the_scripts_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["completion", "bash"])
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "weights.h5").write_text("")
    lines = ["source ./completion", "f=$(complete -p syrtos | sed 's/.*-F \\([^ ]*\\).*/\\1/')"]
    for words in (
        ["ver"],
        ["run", "--sync-b"],
        ["run", "-n", "2", "tr"],
        ["run", "train.py", "--weights", "wei"],
    ):
        last, before = words[-1], ["syrtos", *words][-2]
        lines += [
            f"COMP_WORDS=(syrtos {' '.join(words)})",
            f"COMP_CWORD={len(words)}",
            "COMPREPLY=()",
        ]
        lines += [f"$f syrtos {last} {before} 2>&-", 'echo "${COMPREPLY[*]}"']
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split("\n") == [
        "verify",
        "--sync-batchnorm",
        "train.py",
        "weights.h5",
        "",
    ], done.stderr
