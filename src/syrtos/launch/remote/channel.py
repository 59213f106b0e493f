"""Messages between a launcher and the agent of a host, over two pipes or a socket.

Each message is a JSON object, with bytes that belong to it.
"""

from __future__ import annotations

import json
import os
import select
import struct
import threading
from typing import Any

# A mark, then the lengths of the object and of the bytes.
_HEAD = struct.Struct(">8sII")
_MARK = b"\x1esyrtos1"
# Bytes of the longest object, and of the bytes that may come with one.
_LONGEST, _MOST_DATA = 1 << 22, 1 << 25
_PIECE = 1 << 18

Message = dict[str, Any]


class Channel:
    """An end of a connection for messages.

    Several threads may send concurrently; a single thread receives.
    """

    def __init__(self, reads: int, writes: int) -> None:
        """Takes over two descriptors; for a socket the same one twice."""
        self._reads, self._writes = reads, writes
        self._sending = threading.Lock()
        self._over = False
        for descriptor in {reads, writes}:
            os.set_blocking(descriptor, False)

    def send(self, kind: str, data: bytes | memoryview = b"", **facts: Any) -> None:
        """Sends a message.

        Raises:
            OSError: the other end is gone, or this one was closed.
        """
        message = json.dumps({"is": kind, **facts}).encode()
        with self._sending:
            for part in (_HEAD.pack(_MARK, len(message), len(data)), message, data):
                self._write(memoryview(part))

    def _write(self, view: memoryview) -> None:
        poll = select.poll()
        poll.register(self._writes, select.POLLOUT)
        while view and not self._over:
            # A channel that is closed meanwhile is noticed twice a second.
            if poll.poll(500):
                try:
                    view = view[os.write(self._writes, view[:_PIECE]) :]
                except BlockingIOError:
                    continue
        if view:
            raise ConnectionError("the channel was closed")

    def receive(self, silence: float | None = None) -> Message | None:
        """Returns the next message, with the bytes that belong to it as ``data``.

        Returns None if nothing at all has come for ``silence`` seconds.

        Raises:
            EOFError: the other end is gone.
            OSError: what comes is no message.
        """
        if (head := self._read(_HEAD.size, silence)) is None:
            return None
        mark, length, data = _HEAD.unpack(head)
        if mark != _MARK or length > _LONGEST or data > _MOST_DATA:
            raise OSError(f"something came that is no message: {head!r}")
        parts = [self._read(count, silence) for count in (length, data)]
        if parts[0] is None or parts[1] is None:
            return None
        try:
            return {**json.loads(parts[0]), "data": parts[1]}
        except (ValueError, TypeError) as error:
            raise OSError(f"something came that is no message: {error}") from error

    def _read(self, count: int, silence: float | None) -> bytes | None:
        found = bytearray()
        poll = select.poll()
        poll.register(self._reads, select.POLLIN)
        while len(found) < count:
            if not poll.poll(None if silence is None else silence * 1000):
                return None
            try:
                piece = os.read(self._reads, min(count - len(found), _PIECE))
            except BlockingIOError:
                continue
            if not piece:
                raise EOFError
            found += piece
        return bytes(found)

    def close(self) -> None:
        """Stops sending.

        The rest of a message that is being sent is dropped too, and its sender gets an OSError.
        """
        self._over = True
