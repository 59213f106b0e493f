"""Checksums of batches, by which workers compare what they have read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

# Global batches between two comparisons.
COMPARE_EVERY = 64
# An array of at most this many bytes is compared whole, and so much of a larger one, but at least its
# first, its middle and its last row.
_SMALL, _ROWS = 1 << 16, 3
# A text counts as so many bytes, whatever its length.
_TEXT = 1 << 10


def is_compared(number: int) -> bool:
    """Returns whether workers compare a batch, by its number in the epoch (from 0 on)."""
    # Also batches 1, 2, 4, 8 and so on, so that data which differs is found soon.
    return number % COMPARE_EVERY == 0 or number.bit_count() == 1


def checksum_of(arrays: Iterable[npt.NDArray[np.generic]]) -> float:
    """Returns a CRC-32 of the shapes of arrays of any dtype, and of their `compared_rows`."""
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(repr(array.shape).encode(), checksum)
        rows = np.ascontiguousarray(compared_rows(array)).reshape(-1)
        if rows.dtype.hasobject:
            for text in rows.tolist():
                checksum = zlib.crc32(_as_bytes(text) + b"\0", checksum)
        else:
            checksum = zlib.crc32(rows.view(np.uint8).data, checksum)
    return float(checksum)


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def compared_rows(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Returns rows from all over an array, or all of it if it is small.

    ``array`` may be a tensor of a framework with the same methods.
    """
    is_text = getattr(array.dtype, "hasobject", False)
    size = array.size * _TEXT if is_text else array.nbytes
    if not array.ndim or size <= _SMALL:
        return array
    count = min(max(_SMALL * len(array) // size, _ROWS), len(array))
    return array[np.linspace(0, len(array) - 1, count).astype(np.int64)]
