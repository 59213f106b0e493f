"""Memory for snapshots that outlives the workers: it belongs to the launcher, and workers open it by a path.

Each rank has two slots and writes them in turn, so the snapshot before is whole while the next is written. A snapshot is committed once
every rank has written its part of it. The last number that all ranks have is always in one of the two slots of each: workers exchange
gradients between two snapshots, so none is more than one ahead.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

Places = Sequence[tuple[str, str]]

# Number of the snapshot, 0 while there is none or it is being written; its length in bytes.
_HEAD = struct.Struct("<QQ")
_PIECE = 1 << 24


class Memory:
    """The slots of all ranks of one host, as long as this process lives (memfd_create(2)).

    Args:
        ranks: how many there are.
        folder: an empty folder of a file system in memory, for workers in a user namespace of their own, which may not look into this process
            (user_namespaces(7)). It is removed at the end; by the caller, if this process is killed.

    Attributes:
        places: for each rank the paths of its two slots, for `Slots` in this process and others of the same user.
    """

    def __init__(self, ranks: int, folder: Path | None = None) -> None:
        self._folder = folder
        self._descriptors: list[int] = []
        self.places: Places = [(self._slot(f"{rank}-0"), self._slot(f"{rank}-1")) for rank in range(ranks)]

    def _slot(self, name: str) -> str:
        if self._folder is not None:
            path = self._folder / name
            path.touch(mode=0o600)
            return str(path)
        self._descriptors.append(os.memfd_create(f"syrtos-{name}"))
        return f"/proc/{os.getpid()}/fd/{self._descriptors[-1]}"

    def close(self) -> None:
        """Frees the memory once no worker has it open."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Slots:
    """The slots of all ranks, to read, and to write those of one's own."""

    def __init__(self, places: Places) -> None:
        self._slots = [tuple(os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in pair) for pair in places]

    @property
    def ranks(self) -> int:
        """How many write snapshots."""
        return len(self._slots)

    def committed(self) -> int:
        """The number of the newest snapshot of which every rank has written its part; 0 if there is none."""
        written = [{_head(slot)[0] for slot in pair} for pair in self._slots]
        return max(set.intersection(*written), default=0)

    def read(self, rank: int, number: int) -> bytes:
        """One rank's part of a committed snapshot."""
        return b"".join(self.pieces(rank, number))

    def pieces(self, rank: int, number: int) -> Iterator[bytes]:
        """The same in pieces of some megabytes.

        Raises:
            BlockingIOError: a worker has begun to write another snapshot over it.
        """
        slot = self._slots[rank][number % 2]
        found, length = _head(slot)
        if found != number:
            raise BlockingIOError(f"Snapshot {number} of rank {rank} is being replaced.")
        for begin in range(0, length, _PIECE):
            piece = os.pread(slot, min(_PIECE, length - begin), _HEAD.size + begin)
            if _head(slot)[0] != number:
                raise BlockingIOError(f"Snapshot {number} of rank {rank} has been replaced while it was read.")
            yield piece

    def write(self, rank: int, number: int, part: bytes | memoryview) -> None:
        """Writes one rank's part of a snapshot, in the place of the one before the last.

        Raises:
            OSError: there is no memory left for it; the slot is empty then.
        """
        slot = self._slots[rank][number % 2]
        os.pwrite(slot, _HEAD.pack(0, 0), 0)
        view = memoryview(part)
        try:  # a full file system in memory would write less, and say so by a number
            os.posix_fallocate(slot, 0, _HEAD.size + len(view))
        except OSError:
            os.ftruncate(slot, _HEAD.size)
            raise
        os.ftruncate(slot, _HEAD.size + len(view))
        begin = 0
        while begin < len(view):
            begin += os.pwrite(slot, view[begin : begin + _PIECE], _HEAD.size + begin)
        os.pwrite(slot, _HEAD.pack(number, len(view)), 0)

    def drop_uncommitted(self) -> None:
        """Drops what some ranks have written and others not, once no worker writes: the next generation gives out the same numbers again."""
        committed = self.committed()
        for pair in self._slots:
            for slot in pair:
                if _head(slot)[0] > committed:
                    os.pwrite(slot, _HEAD.pack(0, 0), 0)

    def close(self) -> None:
        """Lets go of the memory."""
        for pair in self._slots:
            for slot in pair:
                os.close(slot)


def _head(slot: int) -> tuple[int, int]:
    head = os.pread(slot, _HEAD.size, 0)
    return _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
