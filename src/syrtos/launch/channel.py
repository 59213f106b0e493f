"""Messages between a launcher and the agent of a host, over two pipes or a socket: JSON objects, and bytes that belong to them."""

from __future__ import annotations

import json
import threading
from multiprocessing.connection import Connection
from typing import Any

# Bytes of the longest message, and of the data that may come with one.
_LONGEST, _MOST_DATA = 1 << 22, 1 << 25

Message = dict[str, Any]


class Channel:
    """One end. Threads may send concurrently; one receives."""

    def __init__(self, reads: Connection, writes: Connection | None = None) -> None:
        self._reads, self._writes = reads, writes or reads
        self._sending = threading.Lock()

    def send(self, kind: str, data: bytes | memoryview | None = None, **facts: Any) -> None:
        """Raises OSError: the other end is gone."""
        message = json.dumps({"is": kind, **facts, **({} if data is None else {"data": True})}).encode()
        with self._sending:
            self._writes.send_bytes(message)
            if data is not None:
                self._writes.send_bytes(data)

    def receive(self, seconds: float | None = None) -> Message | None:
        """The next message, with its data as bytes; None if none has come in so many seconds.

        Raises:
            EOFError: the other end is gone.
            OSError: as well, or what comes is no message.
        """
        if seconds is not None and not self._reads.poll(seconds):
            return None
        try:
            message: Message = json.loads(self._reads.recv_bytes(_LONGEST))
        except ValueError as error:
            raise OSError(f"what came is no message: {error}") from error
        if "data" in message:
            message["data"] = self._reads.recv_bytes(_MOST_DATA)
        return message

    def close(self) -> None:
        """Nothing is sent or received any more."""
        self._reads.close()
        self._writes.close()
