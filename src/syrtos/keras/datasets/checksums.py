"""Checksums of batches, by which workers compare what they have read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

# Global batches between two comparisons.
COMPARE_EVERY = 64
# An array of at most this many bytes is compared whole.
_SMALL = 1 << 16


def is_compared(number: int) -> bool:
    """Returns whether workers compare a batch, by its number in the epoch (from 0 on)."""
    # Also batches 1, 2, 4, 8 and so on, so that data which differs is found soon.
    return number % COMPARE_EVERY == 0 or number.bit_count() == 1


def checksum_of(arrays: Iterable[npt.NDArray[np.generic]]) -> float:
    """Returns a CRC-32 of arrays of any dtype, as bytes objects too.

    It counts their shapes and their rows; of arrays that are not small those of `compared_rows`.
    """
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(repr(array.shape).encode(), checksum)
        rows = np.ascontiguousarray(compared_rows(array))
        data = (
            b"\0".join(map(_as_bytes, rows.reshape(-1).tolist()))
            if rows.dtype.hasobject
            else rows.reshape(-1).view(np.uint8).data
        )
        checksum = zlib.crc32(data, checksum)
    return float(checksum)


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def compared_rows(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Returns the first, the middle and the last row of an array, or all of it if it is small.

    ``array`` may be a tensor of a framework with the same methods.
    """
    if not array.ndim or array.nbytes <= _SMALL:
        return array
    return array[np.array([0, len(array) // 2, -1])]
