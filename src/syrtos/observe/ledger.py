"""Where the time of each step goes, written down by every worker as JSON lines and never waited for.

One line is one step: its wall time and the part that went into each kind of span (seconds). What no span claims is
``compute``. Spans of an exchange that hides behind computation still count as exchange, so ``compute`` is a lower bound.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

Kind = Literal["input", "exchange", "wait", "callbacks", "checkpoint"]
KINDS: tuple[Kind, ...] = ("input", "exchange", "wait", "callbacks", "checkpoint")

# Lines kept in memory before they are written in one go.
_BATCH = 256


class Ledger:
    """The step ledger of one worker. A ledger without a file counts, but writes nothing."""

    def __init__(self, file: IO[str] | None = None, epochs: Path | None = None) -> None:
        self._file = file
        self._epochs = epochs
        self._lines: list[str] = []
        self._spent: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._step_started = 0.0
        self._in_step = False
        self.samples = 0.0

    @classmethod
    def open(cls, run_dir: str, rank: int) -> Ledger:
        """The ledger of ``rank`` under ``run_dir/ledger``."""
        path = ledger_path(Path(run_dir), rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(path.open("w", encoding="utf-8"), epochs_path(Path(run_dir)) if rank == 0 else None)

    def begin_step(self) -> None:
        """A step, or several executed as one, begins now. Time since the last one belongs to no step."""
        self._step_started = time.perf_counter()
        self._in_step = True
        self._spent = dict.fromkeys(KINDS, 0.0)
        self.samples = 0.0

    def spend(self, kind: Kind, seconds: float) -> None:
        """Adds to a kind of span of the current step."""
        self._spent[kind] += seconds

    @contextmanager
    def span(self, kind: Kind) -> Iterator[None]:
        """Measures a block as ``kind``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            if self._in_step:
                self.spend(kind, seconds)
            else:
                self.note(kind, seconds)

    def end_step(self, step: int, phase: str, steps: int = 1) -> None:
        """Writes down the step that ends now.

        Args:
            step: index of the last of the steps executed as one.
            phase: ``"train"``, ``"test"`` or ``"predict"``.
            steps: how many were executed as one.
        """
        wall = time.perf_counter() - self._step_started
        self._in_step = False
        record = {"step": step, "phase": phase, "steps": steps, "samples": self.samples, "wall": round(wall, 6)}
        record |= {kind: round(seconds, 6) for kind, seconds in self._spent.items()}
        record["compute"] = round(max(wall - sum(self._spent.values()), 0.0), 6)
        self._write(record)

    def say(self, **facts: str) -> None:
        """Writes down how something is done in this run, e.g. ``input="planned"``."""
        self._write({"phase": "facts", "steps": 0, **facts})

    def epoch(self, **facts: object) -> None:
        """Rank 0 writes down the end of an epoch, in a file that is short enough to be read again and again."""
        if self._epochs is not None:
            with self._epochs.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **facts}) + "\n")

    def note(self, kind: Kind, seconds: float, phase: str = "between") -> None:
        """Writes down time outside of steps, e.g. a checkpoint at the end of an epoch."""
        self._write({"phase": phase, "steps": 0, "wall": round(seconds, 6), kind: round(seconds, 6)})

    def _write(self, record: dict[str, object]) -> None:
        if self._file is None:
            return
        self._lines.append(json.dumps(record))
        if len(self._lines) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Hands the lines to the file."""
        if self._file and self._lines:
            self._file.write("\n".join(self._lines) + "\n")
            self._file.flush()
            self._lines.clear()

    def close(self) -> None:
        """Writes what is left and closes the file."""
        self.flush()
        if self._file:
            self._file.close()
            self._file = None


def forget(run_dir: Path) -> None:
    """Removes what an earlier run left in the same folder: it may have had more workers, or failed."""
    for path in [*run_dir.glob("ledger/*.jsonl"), *run_dir.glob("logs/rank-*.*")]:
        path.unlink()


def epochs_path(run_dir: Path) -> Path:
    """Where rank 0 writes down the ends of epochs: ``epoch``, ``epochs``, ``step``, ``steps_per_epoch``, ``logs``, ``time``."""
    return run_dir / "ledger" / "epochs.jsonl"


def ledger_path(run_dir: Path, rank: int) -> Path:
    """Where the ledger of ``rank`` lies."""
    return run_dir / "ledger" / f"rank-{rank}.jsonl"
