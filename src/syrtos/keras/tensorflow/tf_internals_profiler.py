"""Private symbols of files that TensorFlow's profiler writes. Seen to work on TensorFlow 2.21."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class _Event(Protocol):
    """An event of a line of a plane; times in picoseconds."""

    metadata_id: int
    offset_ps: int
    duration_ps: int


class _Line(Protocol):
    name: str
    timestamp_ns: int
    events: Iterable[_Event]


class _Metadata(Protocol):
    name: str


class Plane(Protocol):
    """A part of what TensorFlow's profiler has seen, e.g. a device."""

    name: str
    lines: Iterable[_Line]
    event_metadata: Mapping[int, _Metadata]


def planes_of(data: bytes) -> Iterable[Plane]:
    """Returns what TensorFlow's profiler has written: planes of lines of events."""
    # The format is that of tsl/profiler/protobuf/xplane.proto, which has no public reader. Seen on
    # 2.21.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # pyright: ignore[reportMissingImports]

    space: Any = xplane_pb2
    return space.XSpace.FromString(data).planes
