"""The host's cache of files."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
from cache_users import die, slowly, use

from syrtos.data.cache import Cache


def test_a_file_is_made_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_bytes(b"x")

    cache = Cache(tmp_path)
    threads = [threading.Thread(target=cache.file, args=("piece", "a", make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Cache(tmp_path).file("piece", "a", make).read_bytes() == b"x"
    assert len(made) == 1


def test_processes_wait_for_the_one_that_makes_it(tmp_path: Path) -> None:
    processes = [
        multiprocessing.get_context("spawn").Process(target=use, args=(tmp_path,)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (tmp_path / "made").read_text() == "once\n"


def test_what_a_killed_process_has_not_finished_is_not_there(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert Cache(tmp_path).file("piece", "a", slowly).read_bytes() == b"x"


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        Cache(tmp_path).file("piece", "a", fail)
    assert not [path for path in tmp_path.glob("??/*") if path.is_file()]


def test_the_files_not_used_for_longest_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=1000)

    def make(path: Path) -> None:
        path.write_bytes(bytes(100))

    for number in range(10):
        path = cache.file("piece", f"{number}", make)
        os.utime(path, (number, number))
    cache.file("piece", "0", make)  # used again
    cache.file("piece", "new", make)
    kept = [path for path in tmp_path.glob("??/*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) <= 1000
    names = {path.name for path in kept}
    assert cache.file("piece", "0", make).name in names


def touch(path: Path) -> None:
    path.write_bytes(b"x")


def test_who_makes_a_file_may_ask_for_files_below(tmp_path: Path) -> None:
    """Whatever their names: locks are shared by many names, whose digests begin alike."""
    cache = Cache(tmp_path)

    def begins(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()[:3]

    alike = next(str(n) for n in itertools.count() if begins(f"piece {n}") == begins("index a"))

    def make(path: Path) -> None:
        cache.file("piece", alike, touch)
        path.write_bytes(b"y")

    assert cache.file("index", "a", make).read_bytes() == b"y"


def test_a_file_of_more_than_half_of_the_room(tmp_path: Path) -> None:
    def make(path: Path) -> None:
        path.write_bytes(bytes(900))

    cache = Cache(tmp_path, limit=1000)
    assert cache.file("piece", "a", make).stat().st_size == 900
    assert cache.file("piece", "b", make).stat().st_size == 900


def test_a_relative_folder_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache(Path("cache"))
    path = cache.file("piece", "a", lambda path: None)
    monkeypatch.chdir("/")
    assert path.exists()
    assert cache.file("piece", "a", lambda path: None) == path
