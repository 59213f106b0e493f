"""One worker writes a file, or fetches one, for all: played by this process, with what the others would have left in the run directory."""

from __future__ import annotations

import errno
import fcntl
import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

from syrtos import topology
from syrtos.comm import world
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.comm.watchdog import Watchdog
from syrtos.errors import StalledError, SyrtosError
from syrtos.keras.files import claims, travelling_errors, write_once
from syrtos.observe.ledger import Ledger
from syrtos.settings import Options


class _Others(InProcessCommunicator):
    """Another worker that does something when this one begins to wait for it, and never comes to an exchange."""

    def __init__(self, rank: int, do: Callable[[], None]) -> None:
        super().__init__(rank, 2)
        self._do, self.called = do, list[str]()

    def pass_by(
        self, call: str, again: bool = False, until: Callable[[], bool] | None = None
    ) -> bool:
        self.called.append(call)
        self._do()
        assert until is not None
        while not until():
            time.sleep(0.001)
        return False


Play = Callable[..., _Others]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Makes this process a worker of a world of two."""
    before = world.adopt(None)
    monkeypatch.setattr(write_once, "_calls", write_once._Calls())

    def as_rank(rank: int, do: Callable[[], None] = lambda: None, timeout: float = 60.0) -> _Others:
        comm = _Others(rank, do)
        place = topology.World(rank=rank, size=2, local_rank=rank, local_size=2)
        options = Options(run_dir=str(tmp_path / "run"))
        world.adopt(world.Session(place, comm, comm, options, Ledger(), Watchdog(timeout)))
        return comm

    yield as_rank
    world.adopt(before)


def _first_writes(path: Path, text: str) -> None:
    """What rank 0 does for its first file."""
    claim = claims.Claim(str(path), "0 1", fetched=False)
    with claim.holding():
        claims.Turn("writes").tell((0, 1))
        claim.settle(lambda: path.write_text(text))


def test_the_first_worker_waits_for_nobody(tmp_path: Path, play: Play) -> None:
    others = play(0)
    write_once.once(str(tmp_path / "file"), lambda: (tmp_path / "file").write_text("whole"))
    assert (tmp_path / "file").read_text() == "whole"
    assert not others.called


def test_the_first_worker_writes_again_when_the_others_have_come_or_do_not(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may still have to read what it has written before."""
    monkeypatch.setattr(write_once, "_PATIENCE", 0.1)
    others, path = play(0), tmp_path / "file"
    for text in ("first", "second"):
        write_once.once(str(path), functools.partial(path.write_text, text))
    assert path.read_text() == "second"
    assert len(others.called) == 1


def test_another_worker_waits_until_the_first_has_written(tmp_path: Path, play: Play) -> None:
    path = tmp_path / "file"
    others = play(1, lambda: _first_writes(path, "by the first"))
    write_once.once(str(path), lambda: path.write_text("by another"))
    assert path.read_text() == "by the first"
    assert len(others.called) == 1


def test_another_worker_does_not_wait_for_a_first_one_that_writes_something_else(
    tmp_path: Path, play: Play
) -> None:
    others = play(1)
    _first_writes(tmp_path / "of the first", "")
    write_once.once(str(tmp_path / "own"), lambda: (tmp_path / "own").write_text("whole"))
    assert (tmp_path / "own").exists()
    assert not others.called


def test_a_first_worker_that_does_not_come_is_not_waited_for(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_once, "_PATIENCE", 0.1)
    play(1)
    write_once.once(str(tmp_path / "file"), lambda: (tmp_path / "file").write_text("whole"))
    play(0)
    write_once._calls = write_once._Calls()
    write_once.once(str(tmp_path / "file"), lambda: pytest.fail("it has been written"))


def test_a_writer_that_hangs_is_told_of(tmp_path: Path, play: Play) -> None:
    """To writers of the same file, and to readers."""
    play(0, timeout=0.2)
    path = str(tmp_path / "file")
    with claims.Claim(path, "0 1", fetched=False).holding():
        with pytest.raises(StalledError, match=path):
            write_once.once(path, lambda: None)
        with pytest.raises(StalledError, match=path):
            claims.await_holder(path)
    write_once.once(path, lambda: None)


def test_where_locks_do_not_work_one_worker_fetches(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    play(0)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    inside, most = threading.Semaphore(1), list[bool]()

    def fetch(number: int) -> None:
        with claims.Claim("file", f"0 {number}", fetched=True).holding():
            most.append(inside.acquire(blocking=False))
            time.sleep(0.05)
            inside.release()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(fetch, range(3)))
    assert most == [True] * 3


def test_a_fetch_is_known_by_its_file_and_nothing_tells_its_address(
    tmp_path: Path, play: Play
) -> None:
    fetched: list[str] = []

    @write_once.fetching
    def get_file(
        fname: str, origin: str, progress: object = None, cache_dir: str | None = None
    ) -> str:
        fetched.append(fname)
        (tmp_path / fname).write_text("whole")
        return str(tmp_path / fname)

    get = functools.partial(
        get_file, "file", "https://host/file?signature=secret", cache_dir=str(tmp_path)
    )
    play(0)
    expected = get(object())
    write_once._calls = write_once._Calls()
    play(1)
    assert get(object()) == expected
    assert fetched == ["file"]
    for left in (tmp_path / "run" / "claims").iterdir():
        assert "secret" not in left.read_text()
    write_once._calls = write_once._Calls()
    others = play(1, lambda: claims.Turn("fetches 0").tell((0, 1)))
    (tmp_path / "run" / "claims").rename(tmp_path / "gone")
    (tmp_path / "run" / "claims").mkdir()
    get(object())
    assert others.called
    assert not any("secret" in call for call in others.called)
    records = [path for path in (tmp_path / "gone").iterdir() if path.read_text().startswith("{")]
    assert [path.stat().st_mode & 0o777 for path in records] == [0o600]


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/a/b"),
        ValueError("wrong"),
        tf.errors.NotFoundError(None, None, "no checkpoint"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_are_raised_again_with_type_and_text(error: Exception) -> None:
    found = travelling_errors.error_from(travelling_errors.describe_error(error))
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_an_error_of_an_unknown_type_keeps_its_text() -> None:
    own = type("OwnError", (Exception,), {})
    with pytest.raises(SyrtosError, match="OwnError: full"):
        raise travelling_errors.error_from(travelling_errors.describe_error(own("full")))
