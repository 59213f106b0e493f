"""Folders that several workers make: two of them played in one process, each with its own `os.mkdir`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from syrtos.launch.worker import made_folders

Makes = Callable[..., None]


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Makes]]:
    """`os.mkdir` as each of two workers has it."""
    monkeypatch.setattr(made_folders, "_SAYS_SO", 0.05)
    original = os.mkdir

    def make(rank_aware: bool = False) -> list[Makes]:
        found: list[Makes] = []
        for _ in range(2):
            monkeypatch.setattr(os, "mkdir", original)
            made_folders.install(tmp_path / "notes", lambda: rank_aware)
            found.append(os.mkdir)
        monkeypatch.setattr(os, "mkdir", original)
        return found

    return make


def test_each_may_make_it_once(tmp_path: Path, workers: Callable[..., list[Makes]]) -> None:
    first, second = workers()
    first(tmp_path / "new")
    second(str(tmp_path / "new"))
    for worker in (first, second):
        with pytest.raises(FileExistsError):
            worker(tmp_path / "new")


def test_by_other_functions_of_python(
    tmp_path: Path, workers: Callable[..., list[Makes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker in workers():
        monkeypatch.setattr(os, "mkdir", worker)
        (tmp_path / "new").mkdir()
        os.makedirs(tmp_path / "deep" / "er")
        os.makedirs(tmp_path / "deep" / "est", exist_ok=True)


def test_a_folder_that_may_be_there_costs_no_wait(
    tmp_path: Path, workers: Callable[..., list[Makes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = workers()
    monkeypatch.setattr(os, "mkdir", worker)
    monkeypatch.setattr(made_folders, "_appears", None)  # is not called
    for _ in range(2):
        os.makedirs(tmp_path / "deep" / "er", exist_ok=True)
        (tmp_path / "one").mkdir(exist_ok=True)


def test_what_was_there_before_is_an_error(
    tmp_path: Path, workers: Callable[..., list[Makes]]
) -> None:
    (tmp_path / "old").mkdir()
    for worker in workers():
        with pytest.raises(FileExistsError):
            worker(tmp_path / "old")


def test_a_script_that_knows_its_rank_decides_itself(
    tmp_path: Path, workers: Callable[..., list[Makes]]
) -> None:
    first, second = workers(rank_aware=True)
    first(tmp_path / "lock")
    with pytest.raises(FileExistsError):
        second(tmp_path / "lock")


def test_libraries_may_lock_by_folders(tmp_path: Path, workers: Callable[..., list[Makes]]) -> None:
    library: dict[str, Makes] = {}
    code = compile(
        "def lock(mkdir, path): mkdir(path)", "/env/lib/python3.11/site-packages/locks.py", "exec"
    )
    exec(code, library)
    first, second = workers()
    library["lock"](first, tmp_path / "lock")
    with pytest.raises(FileExistsError):
        library["lock"](second, tmp_path / "lock")


def test_other_errors_and_arguments(tmp_path: Path, workers: Callable[..., list[Makes]]) -> None:
    worker, _ = workers()
    with pytest.raises(FileNotFoundError):
        worker(tmp_path / "none" / "new")
    worker(tmp_path / "private", 0o700)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
    folder = os.open(tmp_path, os.O_RDONLY)
    worker("below", dir_fd=folder)
    os.close(folder)
    assert (tmp_path / "below").is_dir()
    shutil.rmtree(tmp_path / "private")
    worker(tmp_path / "private")
