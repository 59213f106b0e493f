"""Tags: a number of each worker at a meeting, which says what operation it came for.

A tag is exact as a float64.
"""

from __future__ import annotations

import zlib

# No checksum is that large.
JOINED = 1 << 40
_PASSING = 1 << 41


def of_call(call: str) -> int:
    """Returns the tag of a worker that calls an operation."""
    return zlib.crc32(call.encode())


def of_passing(call: str) -> int:
    """Returns the tag of a worker that passes by."""
    return _PASSING | of_call(call)


class Tags(tuple[int, ...]):
    """The tags of one meeting, by rank.

    Properties are computed on demand, since every exchange begins with a meeting.

    What they mean for all is decided in this order:

    1. a worker passes by: nothing has happened, and the operation of the others waits for the next
      meeting.
    2. workers have joined: they follow the operation of the others.
    3. the calls differ: an error.
    """

    @property
    def passing(self) -> list[int]:
        """The ranks that pass by."""
        return (
            [rank for rank, tag in enumerate(self) if tag >= _PASSING]
            if max(self, default=0) >= _PASSING
            else []
        )

    @property
    def joined_ranks(self) -> list[int]:
        """The ranks that have joined (see `syrtos.comm.joining`)."""
        return [rank for rank, tag in enumerate(self) if tag == JOINED] if JOINED in self else []

    @property
    def calling(self) -> list[int]:
        """The ranks that call an operation."""
        return [rank for rank, tag in enumerate(self) if tag < JOINED]

    @property
    def differ(self) -> bool:
        """Returns whether the operations differ; it counts where no worker passes by."""
        return len(set(self) - {JOINED}) > 1
