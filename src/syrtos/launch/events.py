"""Workers' messages to the launcher: lines on standard error, so that they work wherever MPI does.

A line is a mark and a JSON object. It needs no file system or port in common, and a reader of the
stream without a launcher sees plain text.
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
    """Returns an event as the line that is written."""
    return MARK + json.dumps({"kind": kind, "rank": rank, **facts}).encode() + b"\n"


def machine() -> str:
    """Returns an identifier of this boot of the machine and of its namespace of process numbers.

    It is equal where process numbers mean the same processes.
    """
    return (
        f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
        f" {os.readlink('/proc/self/ns/pid')}"
    )


def born(pid: int) -> int:
    """Returns when a process began, in ticks since boot (proc(5), field 22); 0 if it is gone.

    A process that has ended, and whose parent has not noticed it yet, is gone.
    """
    fields = stat(pid)
    # The kernel gives numbers out again: number and birth together name a process. One in state Z
    # has ended, and its parent has not noticed it yet.
    return 0 if not fields or fields[0] in "ZX" else int(fields[19])


def stat(pid: int) -> list[str]:
    """Returns the fields of proc(5)'s ``stat`` from the third, the state, on.

    The list is empty if the process is gone.
    """
    try:
        # The second field, the name of the program, may hold spaces and brackets itself.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def report_start(descriptor: int, rank: int) -> None:
    """Reports that this process has started, with the host and number by which messages name it."""
    send(descriptor, "started", rank, host=socket.gethostname(), pid=os.getpid())


def parse(data: bytes) -> dict[str, Any] | None:
    """Returns the event on a line, or None if the line is ordinary output."""
    if not data.startswith(MARK):
        return None
    try:
        event = json.loads(data[len(MARK) :])
    except ValueError:
        return None
    complete = (
        isinstance(event, dict)
        and isinstance(event.get("kind"), str)
        and isinstance(event.get("rank"), int)
    )
    return event if complete else None


def drain(descriptor: int, seconds: float = 1.0) -> None:
    """Waits until the reader of the pipe has taken everything, at most ``seconds``."""
    # The end of this process may end the reader too.
    deadline = time.monotonic() + seconds
    unread = array.array("i", [1])
    while unread[0] and time.monotonic() < deadline:
        try:
            fcntl.ioctl(descriptor, termios.FIONREAD, unread)
        except OSError:  # no pipe
            return
        time.sleep(0.005)


def send(descriptor: int, kind: str, rank: int, **facts: Any) -> None:
    """Writes an event of at most PIPE_BUF bytes; long texts lose their middle."""
    whole = line(kind, rank, **facts)
    # A pipe takes so many bytes at once (pipe(7)): lines of several writers don't mix.
    if len(whole) > select.PIPE_BUF:
        longest = max((len(text) for text in facts.values() if isinstance(text, str)), default=0)
        kept = range(longest)
        too_many = bisect.bisect(
            kept, select.PIPE_BUF, key=lambda n: len(line(kind, rank, **_shorten(facts, n)))
        )
        whole = line(kind, rank, **_shorten(facts, max(too_many - 1, 0)))
    os.write(descriptor, whole)


def _shorten(facts: Mapping[str, Any], kept: int) -> dict[str, Any]:
    """Shortens each text of ``facts`` to ``kept`` characters.

    A third of the characters are from the start of the text, the others from its end.
    """
    texts = {
        name: text for name, text in facts.items() if isinstance(text, str) and len(text) > kept
    }
    start = kept // 3
    return {
        **facts,
        **{
            name: f"{text[:start]}\n...\n{text[len(text) - (kept - start) :]}"
            for name, text in texts.items()
        },
    }
