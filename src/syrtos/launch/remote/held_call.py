"""A function that an agent holds for its host's workers, and the result that one of them leaves."""

from __future__ import annotations

import os

from syrtos.launch.remote.channel import Message
from syrtos.settings import CALL_NAME, CALL_VARIABLE

# What a launcher asks an agent, and the bytes of a message.
TAKE, GIVE = "take the call", "give the result"
PIECE = 1 << 24


class HeldCall:
    """A function, and the result of rank 0, in files of this process's memory without names."""

    def __init__(self, parcel: bytes = b"") -> None:
        self._files: tuple[int, int] | None = None
        if parcel:
            self._take(parcel, 0)

    def begin(self) -> dict[str, str]:
        """Forgets an earlier result; returns the variable by which workers find both files.

        The result is empty where there is no function.
        """
        if self._files is None:
            return {}
        os.ftruncate(self._files[1], 0)
        places = (f"/proc/{os.getpid()}/fd/{file}" for file in self._files)
        return {CALL_VARIABLE: ":".join(places)}

    def result(self) -> bytes:
        """Returns what rank 0 has left; empty if it has not, or was elsewhere."""
        if self._files is None:
            return b""
        return os.pread(self._files[1], os.fstat(self._files[1]).st_size, 0)

    def answer(self, asked: Message) -> tuple[bytes | memoryview, Message]:
        """Takes a piece of a function from a launcher, or gives it a piece of the result."""
        if asked["what"] == GIVE:
            return os.pread(self._files[1], PIECE, asked["begin"]) if self._files else b"", {}
        self._take(asked["data"], asked["begin"])
        return b"", {}

    def _take(self, piece: bytes, begin: int) -> None:
        if self._files is None:
            self._files = os.memfd_create(CALL_NAME), os.memfd_create(CALL_NAME)
        if not begin:
            os.ftruncate(self._files[0], 0)
        view = memoryview(piece)
        while view:
            written = os.pwrite(self._files[0], view, begin)
            view, begin = view[written:], begin + written
