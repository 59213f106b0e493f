"""Zygotes for tests."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from syrtos.testing import warm

ENV = {"PATH": os.environ["PATH"]}
ASK = f"from syrtos.testing import warm; print(warm.zygote_path({ENV}))"


@pytest.fixture(autouse=True)
def nothing_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_a_dead_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(warm._SHARED)
    monkeypatch.setattr(
        warm, "_own", functools.cache(warm._own.__wrapped__)
    )  # those of other tests stay
    first = warm.zygote_path(ENV)
    assert warm.zygote_path(ENV) == first
    process = warm._own((), (("KERAS_BACKEND", "tensorflow"),)).process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert warm.zygote_path(ENV) != first
    assert warm._answers(warm.zygote_path(ENV))


def test_processes_share_one_that_outlives_its_starter_and_ends_with_the_sharing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(warm._SHARED)
    with warm.sharing():
        asked = [
            subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
            for _ in range(2)
        ]
        paths = {done.stdout.strip() for done in asked}
        assert len(paths) == 1, asked
        path = paths.pop()
        assert warm._answers(path)
        (zygote,) = (each for each in psutil.process_iter() if _names(each, path))
        zygote.kill()
        zygote.wait()
        again = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
        assert again.stdout.strip() == path
        assert warm._answers(path)
    deadline = time.monotonic() + 30
    while warm._answers(path) or any(_names(each, path) for each in psutil.process_iter()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not Path(path).exists()


def _names(process: psutil.Process, path: str) -> bool:
    """Returns whether a zygote's command has its socket's path, in its order."""
    try:
        return any(path in word for word in process.cmdline())
    except psutil.Error:
        return False
