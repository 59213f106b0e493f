"""Records of runs that never were, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from syrtos.run_dir import RunDir

Line = dict[str, Any]


def write(path: Path, lines: Sequence[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def step(number: int, wall: float = 0.1, samples: float = 8.0, **kinds: float) -> Line:
    """A step that computes but for what is named."""
    compute = wall - sum(kinds.values())
    return {
        "phase": "train",
        "step": number,
        "steps": 1,
        "samples": samples,
        "wall": wall,
        "compute": compute,
        **kinds,
    }


def generation(
    folder: Path,
    began: float,
    ended: float | None,
    ranks: Sequence[Sequence[Line]],
    facts: Line | None = None,
    outcome: str = "FINISHED",
) -> None:
    """One generation, by a clock that shows 1000 s at 0: each rank's process starts 0.5 s after the launcher."""
    began, ended = began + 1000.0, None if ended is None else ended + 1000.0
    for rank, lines in enumerate(ranks):
        first = {"phase": "facts", "began": began + 0.5, "host": "here"}
        write(RunDir(folder).ledger(rank), [first, {"phase": "facts", **(facts or {})}, *lines])
    launcher: Line = {"began": began}
    if ended is not None:
        launcher |= {
            "ended": ended,
            "outcome": {"end": outcome, "code": 0, "text": f"{outcome.lower()}."},
        }
    RunDir(folder).launcher.write_text(json.dumps(launcher))


def epochs(folder: Path, rows: Sequence[Line]) -> None:
    write(RunDir(folder).epochs, rows)


def curve(folder: Path, rows: Sequence[Line]) -> None:
    write(RunDir(folder).curve, rows)
