"""The first look at a command, before it is parsed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from syrtos.cli import early


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SYRTOS_NEW_INTERPRETERS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (["-n", "2", "train.py"], 2),
        (["-n3", "train.py", "-n", "9"], 3),
        (["train.py"], 1),
        (["-n", "\u00b2", "train.py"], 1),
        (["-n"], 1),
        ([], 1),
        (["-n", "0", "train.py"], 1),
    ],
)
def test_number_of_workers(words: list[str], workers: int) -> None:
    assert early._workers(words) == workers


def test_an_interpreter_for_workers_of_this_machine() -> None:
    found = early.early_start(["-n", "2", "train.py"])
    assert found is not None
    assert found._process is not None
    assert found._process.lives()
    pid = found._process.pid
    found.end()
    assert not Path(f"/proc/{pid}").exists()
    found.end()


@pytest.mark.parametrize(
    "words",
    [
        ["--hosts=a,b", "train.py"],
        ["--on", "slurm", "train.py"],
        ["--discover", "hosts.sh", "train.py"],
        ["-n", "2", "--ps", "1", "train.py"],
        ["--dry-run", "train.py"],
    ],
)
def test_none_where_others_start_the_workers(words: list[str]) -> None:
    assert early.early_start(words) is None


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_JOB_ID": "1"},
        {"SYRTOS_NEW_INTERPRETERS": "1"},
        {"COVERAGE_PROCESS_START": "x"},
        # More workers than GPUs: a worker says so.
        {"CUDA_VISIBLE_DEVICES": "0"},
    ],
)
def test_none_where_an_environment_speaks_against_it(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert early.early_start(["-n", "2", "train.py"]) is None


def test_none_where_a_file_may_have_options(folder: Path) -> None:
    (folder / "syrtos.toml").write_text("n = 4")
    assert early.early_start(["train.py"]) is None
