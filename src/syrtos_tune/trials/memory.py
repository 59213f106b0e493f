"""The memory of this process and those it started, e.g. to read data, while a trial trains."""

from __future__ import annotations

import contextlib
import re
import resource
import sys
from pathlib import Path

import psutil

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class HostMemory:
    """Measures the bytes in memory before training began, and the most of them since then."""

    def __init__(self) -> None:
        self._before = psutil.Process().memory_info().rss

    def training_begins(self) -> None:
        """Forgets the peak of what the script has done before."""
        # See proc_pid_clear_refs(5). Where the kernel does not allow it, the later peak includes
        # the earlier one.
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")

    def facts(self) -> dict[str, int]:
        """Returns the memory before training, and the peak since with child processes, in bytes."""
        children = 0
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                children += child.memory_info().rss
        return {"before": self._before, "peak": _peak() + children}


def _peak() -> int:
    with contextlib.suppress(OSError):
        if found := re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
