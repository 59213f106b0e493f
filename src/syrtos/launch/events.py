"""Messages of workers to the launcher: lines on their standard error, so that they work wherever MPI does.

A line is a mark and a JSON object. It needs no file system or port in common, and a reader of the stream without a launcher
sees plain text.
"""

from __future__ import annotations

import array
import bisect
import fcntl
import json
import os
import select
import socket
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARK = b"\x1esyrtos "


def line(kind: str, rank: int, **facts: Any) -> bytes:
    """One event as it is written."""
    return MARK + json.dumps({"kind": kind, "rank": rank, **facts}).encode() + b"\n"


def machine() -> str:
    """An identifier of the boot of a machine and the namespace of process numbers: equal where process numbers mean the same."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def born(pid: int) -> int:
    """When a process began, in ticks since boot: numbers are used again (proc(5), field 22); 0 if it is gone.

    One that has ended and waits for its parent to notice is gone.
    """
    fields = stat(pid)
    return 0 if not fields or fields[0] in "ZX" else int(fields[19])


def stat(pid: int) -> list[str]:
    """Fields of proc(5)'s ``stat`` from the third, the state, on; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started(descriptor: int, rank: int) -> None:
    """Reports the host and number of this process, by which messages name it."""
    send(descriptor, "started", rank, host=socket.gethostname(), pid=os.getpid())


def parse(data: bytes) -> dict[str, Any] | None:
    """The event on a line, or None if it is ordinary output."""
    if not data.startswith(MARK):
        return None
    try:
        event = json.loads(data[len(MARK) :])
    except ValueError:
        return None
    complete = isinstance(event, dict) and isinstance(event.get("kind"), str) and isinstance(event.get("rank"), int)
    return event if complete else None


def drain(descriptor: int, seconds: float = 1.0) -> None:
    """Waits until the reader of the pipe has taken everything: the end of this process may end the reader too."""
    deadline = time.monotonic() + seconds
    unread = array.array("i", [1])
    while unread[0] and time.monotonic() < deadline:
        try:
            fcntl.ioctl(descriptor, termios.FIONREAD, unread)
        except OSError:  # no pipe
            return
        time.sleep(0.005)


def send(descriptor: int, kind: str, rank: int, **facts: Any) -> None:
    """Writes an event of at most PIPE_BUF bytes, so that lines of several writers don't mix; long texts lose their middle."""
    whole = line(kind, rank, **facts)
    if len(whole) > select.PIPE_BUF:
        longest = max((len(text) for text in facts.values() if isinstance(text, str)), default=0)
        kept = range(longest)
        too_many = bisect.bisect(kept, select.PIPE_BUF, key=lambda n: len(line(kind, rank, **_shortened(facts, n))))
        whole = line(kind, rank, **_shortened(facts, max(too_many - 1, 0)))
    os.write(descriptor, whole)


def _shortened(facts: Mapping[str, Any], kept: int) -> dict[str, Any]:
    """With at most ``kept`` characters of each text: a third of them from its start, the others from its end."""
    texts = {name: text for name, text in facts.items() if isinstance(text, str) and len(text) > kept}
    start = kept // 3
    return {
        **facts,
        **{name: f"{text[:start]}\n...\n{text[len(text) - (kept - start) :]}" for name, text in texts.items()},
    }
