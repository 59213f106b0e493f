"""Memory for snapshots that outlives the workers of a host.

It belongs to the launcher or agent, and workers open it by a path.

A snapshot is whole on each host: the workers of the host write a part each. A part has two slots,
which are written in turn, so the snapshot before is whole while the next is written. A snapshot is
committed once all of its parts are written. The last number that all parts have is always in one of
the two slots of each: workers exchange gradients between two snapshots, so none is more than one
ahead.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

Places = Sequence[tuple[str, str]]

# Number of the snapshot, 0 while there is none or it is being written; how many parts it has; the
# length of this one in bytes.
_HEAD = struct.Struct("<QQQ")
_PIECE = 1 << 24  # bytes: of a large part only so much is copied before its head is looked at again


class SlotsInMemory:
    """The slots of one host, as long as this process lives (memfd_create(2)).

    Args:
        parts: the number of parts that a snapshot may have.
        folder: an empty folder of a file system in memory, for workers in a user namespace of their
            own, which may not look into this process (user_namespaces(7)). It is removed at the
            end; by the caller, if this process is killed.

    Attributes:
        places: for each part the paths of its two slots, for `Slots` in this process and others of
            the same user.
    """

    def __init__(self, parts: int, folder: Path | None = None) -> None:
        self._folder = folder
        self._descriptors: list[int] = []
        self.places: list[tuple[str, str]] = []
        self.grow(parts)

    def grow(self, parts: int) -> None:
        """Makes room for snapshots of ``parts`` parts, if there is less."""
        for part in range(len(self.places), parts):
            self.places.append((self._slot(f"{part}-0"), self._slot(f"{part}-1")))

    def _slot(self, name: str) -> str:
        if self._folder is not None:
            path = self._folder / name
            path.touch(mode=0o600)
            return str(path)
        # memory without a name, which the kernel frees once nobody has it open, however this
        # process ends
        self._descriptors.append(os.memfd_create(f"syrtos-{name}"))
        return f"/proc/{os.getpid()}/fd/{self._descriptors[-1]}"

    def close(self) -> None:
        """Frees the memory once no worker has it open."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Slots:
    """The slots of one host: readers read them, and each of its workers writes its part."""

    def __init__(self, places: Places) -> None:
        self._slots: list[tuple[int, ...]] = []
        self.open(places)

    def open(self, places: Places) -> None:
        """Opens the slots that are not open yet; there may be more than there were."""
        for pair in places[len(self._slots) :]:
            self._slots.append(tuple(os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in pair))

    def complete_numbers(self) -> set[int]:
        """Returns the numbers of the snapshots of which all parts are written."""
        # part 0 is part of every snapshot, so its two slots name all that there can be
        return {
            number
            for number, parts, _ in map(_head, self._slots[0])
            if number and self._has(number, parts)
        }

    def _has(self, number: int, parts: int) -> bool:
        return all(_head(pair[number % 2])[:2] == (number, parts) for pair in self._slots[:parts])

    def committed_number(self) -> int:
        """Returns the number of the newest snapshot whose parts are all written; 0 without one."""
        return max(self.complete_numbers(), default=0)

    def parts(self, number: int) -> int:
        """Returns the number of parts of a committed snapshot."""
        return _head(self._slots[0][number % 2])[1]

    def read(self, part: int, number: int) -> bytes:
        """Returns a part of a committed snapshot."""
        return b"".join(self.pieces(part, number))

    def pieces(self, part: int, number: int) -> Iterator[bytes]:
        """Yields a part of a committed snapshot in pieces of at most 16 MiB.

        Raises:
            BlockingIOError: a worker has begun to write another snapshot over it.
        """
        slot = self._slots[part][number % 2]
        found, _, length = _head(slot)
        if found != number:
            raise BlockingIOError(f"Part {part} of snapshot {number} is being replaced.")
        for begin in range(0, length, _PIECE):
            piece = os.pread(slot, min(_PIECE, length - begin), _HEAD.size + begin)
            # after the bytes are copied: a writer clears the head before it touches them
            if _head(slot)[0] != number:
                raise BlockingIOError(
                    f"Part {part} of snapshot {number} has been replaced while it was read."
                )
            yield piece

    def write(self, part: int, number: int, parts: int, *pieces: bytes | memoryview) -> None:
        """Writes one of the ``parts`` parts of a snapshot over the snapshot before the last.

        ``pieces``: the bytes of the part, which follow each other.

        Raises:
            OSError: there is no memory left for it; the slot is empty then.
        """
        slot = self._slots[part][number % 2]
        # the slot counts as empty until all bytes are in it: a worker may be killed in the middle
        os.pwrite(slot, _HEAD.pack(0, 0, 0), 0)
        views = [memoryview(piece).cast("B") for piece in pieces]
        length = sum(map(len, views))
        try:
            # a full file system in memory fails here; a write would only write less, and say so by
            # a number
            os.posix_fallocate(slot, 0, _HEAD.size + length)
        except OSError:
            os.ftruncate(slot, _HEAD.size)
            raise
        os.ftruncate(slot, _HEAD.size + length)
        begin = _HEAD.size
        for view in views:
            while view:
                # write(2) may write less than it is asked to, and no more than 2 GiB
                written = os.pwrite(slot, view[:_PIECE], begin)
                view, begin = view[written:], begin + written
        os.pwrite(slot, _HEAD.pack(number, parts, length), 0)

    def drop_all_but(self, number: int) -> None:
        """Drops what was written for other snapshots, once no worker writes."""
        # the next generation gives out the numbers after this one again: a part that is left over
        # would pass for one of its own
        for slot in (slot for pair in self._slots for slot in pair):
            if _head(slot)[0] != number:
                os.pwrite(slot, _HEAD.pack(0, 0, 0), 0)

    def close(self) -> None:
        """Closes the slots, which lets go of their memory."""
        for pair in self._slots:
            for slot in pair:
                os.close(slot)


def _head(slot: int) -> tuple[int, int, int]:
    head = os.pread(slot, _HEAD.size, 0)
    return _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0)
