"""Files by which workers tell each other about files that one of them writes.

A claim is the lock on one file, and the record of what has become of it. A turn is how far the
first worker has come.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict

from syrtos.comm import world
from syrtos.keras.files import travelling_errors

if TYPE_CHECKING:
    from syrtos.keras.files.travelling_errors import ErrorFacts
    from syrtos.keras.protocols import R

# Seconds between two looks at a file.
_LOOK = 0.02


class Turn:
    """A file with the number of the write that the first worker has begun; the others wait for it.

    Args:
        name: what is counted, e.g. ``"writes"``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._path = _path(f"turn: {name}")

    def tell(self, number: tuple[int, int]) -> None:
        """Writes down that the first worker has begun.

        ``number``: how many exchanges it lies after, and its own number since the last of them.
        """
        # On a full disk the others wait until it is late, and go on.
        with contextlib.suppress(OSError):
            self._path.write_text(f"{number[0]} {number[1]}", encoding="utf-8")

    def begun(self, number: tuple[int, int]) -> bool:
        """Returns whether the first worker has come as far as ``number``."""
        try:
            meetings, count = self._path.read_text(encoding="utf-8").split()
        # The file is not there yet, or is being written at this moment.
        except (OSError, ValueError):
            return False
        return (int(meetings), int(count)) >= number


class _CallFacts(TypedDict):
    """The facts about a writing call: its error, its result if it is a path for all, its files."""

    error: ErrorFacts | None
    result: Any  # what `work` has returned, as JSON gives it back
    marks: list[list[int] | None]


class Claim:
    """The record of the writing of one file, itself in a file that one worker at a time holds.

    Args:
        key: the path that is written, or another name of the work.
        call: the exchange it lies after and a number: equal on all workers that make the same call.
        fetched: whether the work results in a path for all workers of a host.
    """

    def __init__(self, key: str, call: str, fetched: bool) -> None:
        self._path, self._key, self._call, self._fetched = _path(key), key, call, fetched
        self._file: IO[str] | None = None  # within `holding`

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Context manager: waits until no other worker holds the claim, then holds it.

        The end of a process ends its hold.

        Raises:
            StalledError: another worker has held it for longer than the watchdog's time.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        marker = self._path.with_suffix(".taken") if self._fetched else None
        # For this user alone: errors that are written into it can name addresses with passwords.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        with (
            open(descriptor, "r+", encoding="utf-8") as file,
            _file_lock(file, fcntl.LOCK_EX, self._key, marker),
        ):
            self._file = file
            yield

    def settle(self, work: Callable[[], R]) -> R | None:
        """Does the work, or takes the result or error that another worker has noted of it.

        It does the work again if the file of that worker is on another host's disk.
        """
        known = self._read()
        done = known.get(self._call)
        if done and done["error"]:
            raise travelling_errors.error_from(done["error"])
        if done and any(self._mark(done["result"]) in other["marks"] for other in known.values()):
            return done["result"]
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        marks = [*(done["marks"] if done else []), self._mark(result)]
        told: _CallFacts = {
            "error": error and travelling_errors.describe_error(error),
            "result": result if self._fetched else None,
            "marks": marks,
        }
        self._write({**known, self._call: told})
        if error:
            raise error
        return result

    def _mark(self, result: object) -> list[int] | None:
        """Returns the size and time of the file; None if there is no file."""
        # They tell it from a file of the same name on another host.
        path = str(result) if self._fetched else self._key
        with contextlib.suppress(OSError):
            facts = os.stat(landmark(path))
            return [facts.st_size, facts.st_mtime_ns]
        return None

    def _read(self) -> dict[str, _CallFacts]:
        assert self._file is not None
        text = self._file.read()
        try:
            return json.loads(text) if text else {}
        # Its writer was killed in the middle of it.
        except ValueError:
            return {}

    def _write(self, known: dict[str, _CallFacts]) -> None:
        """Writes down what is known, without calls that no worker can ask for any more."""
        assert self._file is not None
        now = int(self._call.split()[0])
        recent = {call: facts for call, facts in known.items() if int(call.split()[0]) >= now}
        # On a full disk the others know of nothing, and do the work again.
        with contextlib.suppress(OSError):
            os.ftruncate(self._file.fileno(), 0)
            os.pwrite(self._file.fileno(), json.dumps(recent).encode(), 0)


def await_holder(key: str) -> None:
    """Waits while another worker holds the claim on a key.

    Raises:
        StalledError: it has held it for longer than the watchdog's time.
    """
    with (
        contextlib.suppress(FileNotFoundError),
        open(_path(key), "rb") as file,
        _file_lock(file, fcntl.LOCK_SH, key),
    ):
        pass


def landmark(path: str) -> str:
    """Returns the file that appears last when ``path`` is written.

    ``path`` is the prefix of a checkpoint, or a folder.
    """
    inside = os.path.join(path, "saved_model.pb")
    return next((file for file in (f"{path}.index", inside) if os.path.exists(file)), path)


def now_and_then(done: Callable[[], bool]) -> Callable[[], bool]:
    """Wraps ``done`` so that it looks at files at most every `_LOOK` seconds.

    In between the answer is False.
    """
    last = -_LOOK

    def ask_now_and_then() -> bool:
        nonlocal last
        if time.monotonic() - last < _LOOK:
            return False
        last = time.monotonic()
        return done()

    return ask_now_and_then


@contextlib.contextmanager
def _file_lock(
    file: IO[str] | IO[bytes], kind: int, name: str, marker: Path | None = None
) -> Iterator[None]:
    """Context manager: waits for the lock on an open file, and holds it.

    Where the file system has no locks, the existence of ``marker`` is the lock; without a marker
    workers write at once, each a file of its own.
    """
    marked: list[Path] = []

    def locks() -> bool:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            if marker is None:
                return True
            with contextlib.suppress(FileExistsError):
                marker.touch(mode=0o600, exist_ok=False)
                marked.append(marker)
            return bool(marked)
        return True

    session = world.current()
    session.watchdog.another("files").wait(
        now_and_then(locks), f"wait for the writer of {name}", session.world.rank
    )
    try:
        yield
    finally:
        # A process forked meanwhile has the file too: closing it does not end the lock.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        for path in marked:
            path.unlink(missing_ok=True)


def _path(key: str) -> Path:
    return world.claims_folder(world.current()) / hashlib.sha256(key.encode()).hexdigest()[:24]
