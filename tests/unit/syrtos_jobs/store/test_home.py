"""Locks by which processes of a service know of each other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from syrtos.errors import ConfigurationError
from syrtos_jobs.store.home import Home, is_locked, try_lock


def test_asking_for_a_lock_refuses_it_to_nobody(tmp_path: Path) -> None:
    path, over = tmp_path / "lock", threading.Event()
    path.touch()

    def ask() -> None:
        while not over.is_set():
            is_locked(path)

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    got = [try_lock(path)]
    for _ in range(500):
        assert got[-1] is not None
        assert try_lock(path) is None
        got[-1].close()
        got.append(try_lock(path))
    over.set()
    for thread in asking:
        thread.join()
    assert is_locked(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="Set SYRTOS_HOME to one that can"):
        Home(tmp_path / "file" / "home")


@pytest.mark.parametrize("text", ["", "{}", "[]", "\x00"])
def test_damaged_keys_are_named(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path)
    (tmp_path / "credentials.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"credentials.json is damaged"):
        home.keys()
