"""Functions that run TensorFlow's profiler and read its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import tensorflow as tf

from syrtos.keras.tensorflow import tf_internals_profiler
from syrtos.observe.trace import ProfiledEvent


def start(folder: Path) -> Callable[[], Sequence[ProfiledEvent]]:
    """Starts TensorFlow's profiler; the returned function stops it and returns its events."""
    tf.profiler.experimental.start(str(folder))

    def stop() -> Sequence[ProfiledEvent]:
        tf.profiler.experimental.stop()
        return [event for path in folder.rglob("*.xplane.pb") for event in _events(path)]

    return stop


def annotation(name: str) -> AbstractContextManager[object]:
    """Context manager: the profiler shows what runs inside under this name."""
    return tf.profiler.experimental.Trace(name)


def _events(path: Path) -> Sequence[ProfiledEvent]:
    return [
        ProfiledEvent(
            f"{plane.name} {line.name}",
            plane.event_metadata[event.metadata_id].name,
            line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12,
            event.duration_ps * 1e-12,
        )
        for plane in tf_internals_profiler.planes_of(path.read_bytes())
        for line in plane.lines
        for event in line.events
        if event.duration_ps
    ]
