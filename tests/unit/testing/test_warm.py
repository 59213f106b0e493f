"""The process that forks others: it can be asked as soon as it is found, and is replaced when it has died."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from syrtos.errors import LaunchError
from syrtos.testing import warm, zygote

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def empty() -> Iterator[warm.Zygote]:
    """A zygote that has imported nothing."""
    found = warm.Zygote((), ENV)
    yield found
    found.close()


def test_a_path_that_exists_can_be_connected_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    found: list[bool] = []

    class Listener(zygote.socket.socket):
        def listen(self, backlog: int = 0, /) -> None:
            found.append(os.path.exists(path))
            super().listen(backlog)

    class Served(Exception):
        pass

    def serve(_: object) -> None:
        raise Served

    monkeypatch.setattr(zygote.socket, "socket", Listener)
    monkeypatch.setattr(zygote, "Server", serve)
    monkeypatch.setattr(zygote.gc, "freeze", lambda: None)
    monkeypatch.setattr(sys, "path", ["its folder", *sys.path])
    with pytest.raises(Served):
        zygote.main(path, [])
    assert found == [False]
    assert os.path.exists(path)


def test_processes_are_forked(empty: warm.Zygote, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(3)")
    family = warm.Family(empty.path)
    pid = family.fork(warm.Command((str(script),), ENV), (0, 1, 2))
    assert family.wait(60) == (pid, 3)
    family.close()


def test_no_answer_is_an_error(empty: warm.Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_LONGEST_IMPORT", 0.1)
    family = warm.Family(empty.path)
    os.kill(empty._process.pid, signal.SIGSTOP)
    with pytest.raises(LaunchError, match=r"has not answered in 0\.1 s"):
        family.fork(warm.Command(("script.py",), ENV), (0, 1, 2))
    os.kill(empty._process.pid, signal.SIGCONT)
    family.close()


def test_a_dead_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(warm, "_zygote", functools.cache(warm._zygote.__wrapped__))  # those of other tests stay
    first = warm.zygote(ENV)
    assert warm.zygote(ENV) is first
    first._process.kill()
    first._process.wait()
    assert warm.zygote(ENV) is not first
    assert warm.zygote(ENV).lives()
