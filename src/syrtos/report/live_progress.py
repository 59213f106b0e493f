"""The progress of a run on a terminal where nothing else is printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from syrtos.launch.terminal.live import LiveLine, Output
from syrtos.run_dir import RunDir


def showing_progress(
    run_dir: Path, workers: int, outputs: Mapping[int, Output] | None = None
) -> LiveLine:
    """Returns a context manager: a silent terminal shows how far the run is.

    Args:
        run_dir: the run's directory.
        workers: the number of workers that it begins with.
        outputs: what writes to descriptors 1 and 2; None: the unfailing files of this process.
    """

    def describe() -> str:
        # Only when something is shown: a run should start at once.
        from syrtos.report.progress import read_progress

        count = RunDir(run_dir).request().get("resized") or workers
        # on a narrow terminal the end is cut off
        return f"{read_progress(run_dir).describe_running()}, {count} worker{'s' * (count != 1)}"

    return LiveLine(describe, outputs)
