"""Messages between a launcher and the agent of a host: JSON objects, each behind its length, over two pipes or a socket."""

from __future__ import annotations

import json
import threading
from multiprocessing.connection import Connection
from typing import Any

# Bytes of the longest message: output is sent in smaller pieces, and nothing else is long.
LONGEST = 1 << 22

Message = dict[str, Any]


class Channel:
    """One end. Threads may send concurrently; one receives."""

    def __init__(self, reads: Connection, writes: Connection | None = None) -> None:
        self._reads, self._writes = reads, writes or reads
        self._sending = threading.Lock()

    def send(self, kind: str, **facts: Any) -> None:
        """Raises OSError: the other end is gone."""
        message = json.dumps({"is": kind, **facts}).encode()
        with self._sending:
            self._writes.send_bytes(message)

    def receive(self, seconds: float | None = None) -> Message | None:
        """The next message; None if none has come in so many seconds.

        Raises:
            EOFError: the other end is gone.
            OSError: as well, or what comes is no message.
        """
        if seconds is not None and not self._reads.poll(seconds):
            return None
        try:
            return json.loads(self._reads.recv_bytes(LONGEST))
        except ValueError as error:
            raise OSError(f"what came is no message: {error}") from error

    def close(self) -> None:
        """Nothing is sent or received any more."""
        self._reads.close()
        self._writes.close()


def as_text(data: bytes) -> str:
    """Bytes of output as a text of JSON; `as_bytes` gives them back."""
    return data.decode(errors="surrogateescape")


def as_bytes(text: str) -> bytes:
    """See `as_text`."""
    return text.encode(errors="surrogateescape")
