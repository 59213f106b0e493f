"""Functions that run torch's profiler and read its events."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from syrtos.observe.trace import ProfiledEvent


def start(folder: Path) -> Callable[[], Sequence[ProfiledEvent]]:
    """Starts torch's profiler; the returned function stops it and returns the events it saw."""
    activities = [
        ProfilerActivity.CPU,
        *([ProfilerActivity.CUDA] if torch.cuda.is_available() else []),
    ]
    profiler = profile(activities=activities)
    profiler.start()

    def stop() -> Sequence[ProfiledEvent]:
        profiler.stop()
        path = folder / "torch.json"
        profiler.export_chrome_trace(str(path))
        found = json.loads(path.read_text())["traceEvents"]
        return [
            ProfiledEvent(
                f"{each.get('cat', 'torch')} {each['tid']}",
                each["name"],
                each["ts"] * 1e-6,
                each["dur"] * 1e-6,
            )
            for each in found
            if each.get("ph") == "X" and each.get("dur")
        ]

    return stop


def annotation(name: str) -> AbstractContextManager[object]:
    """Context manager: the profiler shows what runs inside under this name."""
    return record_function(name)
