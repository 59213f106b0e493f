"""TFRecords, as TensorFlow's `record_writer.h` describes them, written a second time from its words."""

from __future__ import annotations

import struct

import google_crc32c


def masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(record: bytes) -> bytes:
    """A record with its length and checksums."""
    head = struct.pack("<Q", len(record))
    return head + struct.pack("<I", masked(head)) + record + struct.pack("<I", masked(record))
