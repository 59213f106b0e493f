"""TFRecord files, plain or compressed.

Each record is written as its length (8 bytes), the checksum of the length (4), the record, and its
checksum (4). The format is that of TensorFlow, `tensorflow/core/lib/io/record_writer.h`; checksums
are CRC32C (RFC 3720), masked.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import overload

import google_crc32c
import numpy as np
import numpy.typing as npt

from syrtos.data.cache import Cache
from syrtos.data.files import CachedFile, File
from syrtos.data.records import BAD_LENGTH, GOOD, TRUNCATED, Format
from syrtos.errors import DataError

_HEAD = struct.Struct("<QI")
_FOOT = struct.Struct("<I")
# Bytes that tell what a file is; the head of a compressed file may hold a name.
_LOOKED_AT = 1 << 12
_crc32c: Callable[[bytes], int] = google_crc32c.value


class TFRecord(Format):
    """The TFRecord format: records are the bytes that were written, mostly `tf.train.Example`s."""

    name = "tfrecord 1"
    around = (0, _FOOT.size)

    def unpacked_file(self, file: File, cache: Cache) -> File:
        """Returns the file, or its unpacked copy in the cache if it is compressed."""
        # compressed bytes can't be entered in the middle, so all of them are unpacked at once
        if not _is_packed(file.read(0, min(file.size, _HEAD.size))):
            return file
        made = functools.partial(
            cache.file, "unpacked", f"{file.name} {file.version}", functools.partial(_unpack, file)
        )
        return CachedFile(made, file.name, file.version)

    def scan(self, file: File) -> list[tuple[int, int, int]]:
        """Finds the records of a file; see `Format.scan`."""
        found: list[tuple[int, int, int]] = []
        next_at = 0
        head, crc = _HEAD.unpack_from, _crc32c  # looked up once: the loop runs millions of times
        for begin, window in file.windows():
            end = begin + len(window)
            if next_at < begin:  # the head lies across two windows
                window, begin = file.read(next_at, end), next_at
            while next_at + _HEAD.size <= end:
                length, check = head(window, next_at - begin)
                # without its length, the place of no record behind it is known
                if check != _mask(crc(window[next_at - begin : next_at - begin + 8])):
                    return [*found, (next_at + _HEAD.size, 0, BAD_LENGTH)]
                stop = next_at + _HEAD.size + length + _FOOT.size
                if stop > file.size:
                    return [
                        *found,
                        (next_at + _HEAD.size, max(file.size - next_at - _HEAD.size, 0), TRUNCATED),
                    ]
                found.append((next_at + _HEAD.size, length, GOOD))
                next_at = stop
        if next_at < file.size:
            found.append((next_at, file.size - next_at, TRUNCATED))
        return found

    def unwrap(self, raw: bytes) -> bytes:
        """Returns a record without its checksum; see `Format.unwrap`."""
        return self.unwrap_all([raw])[0]

    def unwrap_all(self, raws: Sequence[bytes]) -> list[bytes]:
        """Returns records without their checksums; see `Format.unwrap_all`."""
        # all at once by NumPy: a comparison for each record costs more than its checksum
        records = [raw[:-4] for raw in raws]
        sums = np.asarray([*map(_crc32c, records)], np.uint32)
        written = np.frombuffer(b"".join([raw[-4:] for raw in raws]), "<u4")
        if (_mask(sums) != written).any():
            raise ValueError("its checksum (CRC32C) is wrong")
        return records


@overload
def _mask(crc: int) -> int: ...
@overload
def _mask(crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.integer]: ...
def _mask(crc: int | npt.NDArray[np.uint32]) -> int | npt.NDArray[np.integer]:
    """Returns a checksum, or several, in the form in which they are written."""
    # checksums of data that hold checksums are weak: so those in files are rotated and added to
    # (TensorFlow, crc32c.h)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_tfrecord(file: File) -> bool:
    """Returns whether a file, unpacked, is empty or begins with a length and its checksum."""
    head = file.read(0, min(file.size, _LOOKED_AT))
    if _is_packed(head):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(head, _HEAD.size)
        except zlib.error:
            return False
    return not head or _begins_with_length(head)


def _begins_with_length(head: bytes) -> bool:
    return len(head) >= _HEAD.size and _HEAD.unpack_from(head)[1] == _mask(_crc32c(head[:8]))


def _is_packed(head: bytes) -> bool:
    """Returns whether a file that begins with these bytes is gzip or zlib."""
    # the first bytes of a length may look like a compressed file's, but hardly with the right
    # checksum
    if len(head) < _HEAD.size or _begins_with_length(head):
        return False
    return head[:3] == b"\x1f\x8b\x08" or (
        head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0
    )


def _unpack(file: File, to: Path) -> None:
    with to.open("wb") as out:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, as its head says
        try:
            for _, window in file.windows(
                1 << 20
            ):  # small ones: unpacked they may be a thousand times as large
                while window:
                    out.write(unpacker.decompress(window))
                    window = unpacker.unused_data
                    if unpacker.eof and window:  # gzip files may be several, one after another
                        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
            out.write(unpacker.flush())
        except zlib.error as error:
            # what came before it is read, and the rest is a truncated record
            if not out.tell():
                raise DataError(f"{file.name} can't be unpacked: {error}.") from error
