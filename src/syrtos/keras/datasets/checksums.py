"""Checksums of batches, by which workers compare what they have read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

# After the first ones every so many batches one is compared: see `is_compared`.
COMPARE_EVERY = 64
# Arrays of at most so many bytes are compared whole. Of larger ones rows of about as many bytes are, at
# least the first, the middle and the last.
_SMALL, _ROWS = 1 << 16, 3
# The bytes that one text is taken to have.
_TEXT = 1 << 10


def is_compared(number: int) -> bool:
    """Returns whether workers compare a batch, by its number in the epoch (from 0 on)."""
    # Also batches 1, 2, 4, 8 and so on, so that data which differs is found soon.
    return number % COMPARE_EVERY == 0 or number.bit_count() == 1


def checksum_of(arrays: Iterable[npt.NDArray[np.generic]]) -> float:
    """Returns a CRC-32 of arrays of any dtype: of their shapes, and of their `compared_rows`."""
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
    """Returns evenly spaced rows of an array, or all of it if it is small.

    ``array`` may be a tensor of a framework with the same methods.
    """
    is_text = getattr(array.dtype, "hasobject", False)
    size = array.size * _TEXT if is_text else array.nbytes
    if not array.ndim or size <= _SMALL:
        return array
    count = min(max(_SMALL * len(array) // size, _ROWS), len(array))
    return array[np.linspace(0, len(array) - 1, count).astype(np.int64)]
