"""A function that an agent holds for its host's workers, and the result that one of them leaves."""

from __future__ import annotations

import os
from pathlib import Path

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
            self._take(parcel)

    @property
    def variables(self) -> dict[str, str]:
        """The variable by which workers find both; empty where there is no function."""
        if self._files is None:
            return {}
        places = (f"/proc/{os.getpid()}/fd/{file}" for file in self._files)
        return {CALL_VARIABLE: ":".join(places)}

    def result(self) -> bytes:
        """Returns what rank 0 has left; empty if it has not, or was elsewhere."""
        return b"" if self._files is None else Path(f"/proc/self/fd/{self._files[1]}").read_bytes()

    def answer(self, asked: Message) -> tuple[bytes | memoryview, Message]:
        """Takes a piece of a function from a launcher, or gives it a piece of the result."""
        if asked["what"] == GIVE:
            return memoryview(self.result())[asked["begin"] : asked["begin"] + PIECE], {}
        self._take(asked["data"])
        return b"", {}

    def _take(self, piece: bytes) -> None:
        if self._files is None:
            self._files = os.memfd_create(CALL_NAME), os.memfd_create(CALL_NAME)
        view = memoryview(piece)
        while view:
            view = view[os.write(self._files[0], view) :]
