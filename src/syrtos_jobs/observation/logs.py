"""The output of a job's instances, in CloudWatch's form.

Each instance has a stream of events, in a file that only grows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from syrtos_jobs.complaints import complain_in_full

GROUP = "/aws/sagemaker/TrainingJobs"
_LONGEST = 32_000  # characters of one event
_CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]"
)
_PAGE = 1 << 20
_LONGEST_OF_FULL = 8 << 20


@dataclasses.dataclass(frozen=True)
class LogEvent:
    """A line of output.

    Attributes:
        time: the time when it was read, milliseconds since 1970.
        end: the byte of the stream's file at which the next event begins.
    """

    time: int
    text: str
    end: int


class LogStream:
    """The events of one instance.

    Args:
        path: the stream's file; its name without suffix is the stream's name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The stream's name in CloudWatch's form, ``job/algo-1-1700000000``."""
        return f"{self.path.parent.parent.name}/{self.path.stem}"

    def write(self, lines: Sequence[str]) -> None:
        """Adds lines as events with the present time."""
        now = int(time.time() * 1000)
        data = "".join(json.dumps({"t": now, "m": line[:_LONGEST]}) + "\n" for line in lines)
        with self._lock, self.path.open("ab") as file:
            file.write((b"" if self._ends_whole() else b"\n") + data.encode())

    def _ends_whole(self) -> bool:
        """Returns whether the file ends with a whole event."""
        # a process that was killed may have left half of one
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return not size or os.pread(file.fileno(), 1, size - 1) == b"\n"

    def cut(self) -> None:
        """Drops all events beyond the first 8 MiB, of a job that has filled the disk."""
        if self.size > _LONGEST_OF_FULL:
            os.truncate(self.path, _LONGEST_OF_FULL)

    def read(self, offset: int = 0, limit: int = 10_000) -> list[LogEvent]:
        """Returns up to ``limit`` events, and no more than a megabyte, from byte ``offset`` on."""
        with self.path.open("rb") as file:
            file.seek(offset)
            data = file.read(_PAGE)
        events, end = [], offset
        for line in data.splitlines(keepends=True)[:limit]:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            # half an event, left by a process that was killed
            with contextlib.suppress(ValueError):
                facts = json.loads(line)
                events.append(LogEvent(facts["t"], facts["m"], end))
        return events

    def before(self, end: int, limit: int) -> list[LogEvent]:
        """Returns up to ``limit`` events, at most a megabyte, that end by byte ``end``."""
        start = max(end - _PAGE, 0)
        with self.path.open("rb") as file:
            file.seek(start)
            skipped = len(file.readline()) if start else 0
        return (
            [event for event in self.read(start + skipped) if event.end <= end][-limit:]
            if limit
            else []
        )

    def all(self, offset: int = 0) -> Iterator[LogEvent]:
        """Yields the events from byte ``offset`` on, to the end of the file."""
        while page := self.read(offset):
            yield from page
            offset = page[-1].end

    def text(self) -> Iterator[bytes]:
        """Yields the present lines as plain text, in pieces of about a megabyte."""
        # in pieces, since a log may be longer than memory; and only to its present end, which a
        # running job moves
        offset, until = 0, self.size
        while offset < until and (page := self.read(offset)):
            yield "".join(f"{event.text}\n" for event in page).encode(errors="replace")
            offset = page[-1].end

    @property
    def size(self) -> int:
        """The size of the file in bytes; the next event will begin there."""
        return self.path.stat().st_size


def make(folder: Path, hosts: Sequence[str], now: float) -> None:
    """Makes a job's streams, before it has any output."""
    # now, since SDK v3 shows nothing until all streams are there
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for host in hosts:
        # streams that are there are kept, or an instance would have two: a service that was killed
        # before it had written down the job left them, and the job is created again
        if not any(folder.glob(f"{host}-*.jsonl")):
            (folder / f"{host}-{int(now)}.jsonl").touch(mode=0o600)


def of(folder: Path) -> list[LogStream]:
    """Returns a job's streams, in the order of its instances."""
    return [LogStream(path) for path in sorted(folder.glob("*.jsonl"), key=_number)]


def _number(path: Path) -> tuple[int, str]:
    found = re.match(r"algo-(\d+)-", path.name)
    return int(found[1]) if found else 0, path.name


class LogTail:
    """Reads files that workers write, line by line, as they grow; they need not exist yet.

    Args:
        sources: paths, each with the function that gets its lines.
    """

    def __init__(self, sources: Sequence[tuple[Path, Callable[[list[str]], None]]]) -> None:
        self._sources = sources
        self._read = [0] * len(sources)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the reading thread, and reads the rest."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._look(last=True)

    def _run(self) -> None:
        while not self._over.wait(0.1):
            try:
                self._look()
            except OSError:
                # a full disk takes no events; the job's end says so
                continue
            except Exception:
                # the lines that follow are read all the same
                complain_in_full()

    def _look(self, last: bool = False) -> None:
        for k, (path, take) in enumerate(self._sources):
            for lines in self._new_lines(k, path, last):
                take(lines)

    def _new_lines(self, k: int, path: Path, last: bool) -> Iterator[list[str]]:
        """Yields a file's new lines in pages of about a megabyte: it may be longer than memory."""
        if path.exists() and path.stat().st_size < self._read[k]:
            # a script has begun its output anew: `> /dev/stderr` empties the file
            self._read[k] = 0
        while data := _from(path, self._read[k]):
            whole = data.rfind(b"\n") + 1
            # a line without an end: it is the last, or longer than a page
            if not whole and (last or len(data) >= _PAGE):
                whole = len(data)
            if not whole:
                break
            self._read[k] += whole
            yield [
                terminal_line(line)
                for line in data[:whole].decode(errors="replace").removesuffix("\n").split("\n")
            ]


def _from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size <= offset:
                return b""
            file.seek(offset)
            return file.read(_PAGE)
    except FileNotFoundError:
        return b""


def terminal_line(line: str) -> str:
    """Returns a line as a terminal would leave it.

    Text that a progress bar has overwritten, colours and control characters are removed.
    """
    final = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    if "\b" in final:
        final = final.rstrip("\b").rpartition("\b")[2]
    return _CONTROL.sub("", final[:_LONGEST])
