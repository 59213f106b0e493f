"""Locks by which processes of a service know of each other."""

from __future__ import annotations

import threading
from pathlib import Path

from syrtos.jobs.store.home import is_locked, try_lock


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
