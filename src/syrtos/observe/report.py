"""What a run's ledgers add up to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from syrtos.observe.ledger import KINDS

SHARES = ("compute", *KINDS)


@dataclasses.dataclass(frozen=True)
class Summary:
    """One screen about a run.

    Attributes:
        workers: ledgers found.
        steps: training steps, as rank 0 counted them.
        samples_per_second: training samples of all workers per second of training steps; 0 if nothing was trained.
        step_ms: median wall time of one training step on rank 0, in milliseconds, its first step left out.
        shares: part of the training steps' wall time (all ranks) by kind; adds up to 1, or all 0 without steps.
        skew: rank that the others waited for most, and the share of time it waited less than the mean.
        facts: how things are done in this run, as rank 0 says.
    """

    workers: int
    steps: int
    samples_per_second: float
    step_ms: float
    shares: dict[str, float]
    skew: tuple[int, float] | None
    facts: dict[str, str]


def summarize(run_dir: Path) -> Summary:
    """Reads all ledgers of a run."""
    paths = sorted((run_dir / "ledger").glob("rank-*.jsonl"), key=_rank)
    ranks = [[r for r in _records(path) if r["phase"] in ("train", "between")] for path in paths]
    first = [r for r in ranks[0] if r["steps"]] if ranks else []
    wall = sum(r["wall"] for r in first)
    samples = sum(r["samples"] for r in first)
    return Summary(
        workers=len(ranks),
        steps=sum(r["steps"] for r in first),
        samples_per_second=samples / wall if wall else 0.0,
        step_ms=_median(r["wall"] / r["steps"] for r in first[1:]) * 1e3,
        shares=_shares([record for rank in ranks for record in rank]),
        skew=_skew(ranks),
        facts=_facts(paths[0]) if paths else {},
    )


class SecondsByRank:
    """Seconds of training by kind, for each rank of a run that goes on: only what is new is read."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read: dict[Path, int] = {}
        self._seconds: dict[Path, dict[str, float]] = {}

    def now(self) -> list[dict[str, float]]:
        """The sums so far, by rank."""
        for path in (self._run_dir / "ledger").glob("rank-*.jsonl"):
            self._add(path)
        return [self._seconds[path] for path in sorted(self._seconds, key=_rank)]

    def _add(self, path: Path) -> None:
        sums = self._seconds.setdefault(path, dict.fromkeys(SHARES, 0.0))
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            new = file.read()
        whole = new.rfind(b"\n") + 1
        self._read[path] = self._read.get(path, 0) + whole
        for line in new[:whole].splitlines():
            record = json.loads(line)
            if record["phase"] in ("train", "between"):
                for kind in SHARES:
                    sums[kind] += record.get(kind, 0.0)


def _facts(path: Path) -> dict[str, str]:
    found = [record for record in _records(path) if record["phase"] == "facts"]
    return {
        key: value for record in found for key, value in record.items() if isinstance(value, str) and key != "phase"
    }


def _rank(path: Path) -> int:
    return int(path.stem.removeprefix("rank-"))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the last line of a worker that was killed while it wrote
            return


def _shares(records: list[dict[str, Any]]) -> dict[str, float]:
    totals = {kind: sum(r.get(kind, 0.0) for r in records) for kind in SHARES}
    whole = sum(totals.values())
    return {kind: value / whole if whole else 0.0 for kind, value in totals.items()}


def _skew(ranks: list[list[dict[str, Any]]]) -> tuple[int, float] | None:
    """Who waits least is who the others wait for."""
    if len(ranks) < 2 or not all(ranks):
        return None
    waits = [sum(r.get("wait", 0.0) for r in rank) / max(sum(r["wall"] for r in rank), 1e-9) for rank in ranks]
    slowest = min(range(len(waits)), key=waits.__getitem__)
    return slowest, sum(waits) / len(waits) - waits[slowest]


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
