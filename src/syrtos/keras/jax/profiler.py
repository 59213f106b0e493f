"""Functions that run JAX's profiler and read its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import jax

from syrtos.observe.trace import ProfiledEvent


def start(folder: Path) -> Callable[[], Sequence[ProfiledEvent]]:
    """Starts JAX's profiler; the returned function stops it, and returns the events that it saw."""
    options = jax.profiler.ProfileOptions()
    # Else each call of Python would be an event: 700,000 in ten steps.
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(folder), profiler_options=options)

    def stop() -> Sequence[ProfiledEvent]:
        jax.profiler.stop_trace()
        return [event for path in folder.rglob("*.xplane.pb") for event in _events(path)]

    return stop


def annotation(name: str) -> AbstractContextManager[object]:
    """Context manager: the profiler shows what runs inside under this name."""
    return jax.profiler.TraceAnnotation(name)


def _events(path: Path) -> Sequence[ProfiledEvent]:
    return [
        ProfiledEvent(
            f"{plane.name} {line.name}", event.name, event.start_ns * 1e-9, event.duration_ns * 1e-9
        )
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes
        for line in plane.lines
        for event in line.events
        if event.duration_ns
    ]
