"""Processors are counted as busy while steps are made, and not before or after."""

from __future__ import annotations

import json
from pathlib import Path

from syrtos.report.processors import machines


def written(
    folder: Path, name: str, samples: list[tuple[int, float | None]], number: int = 0
) -> None:
    (folder / "ledger").mkdir(exist_ok=True)
    lines = [
        json.dumps(
            {"time": 1.0, "trained": trained, "machine": {"number": number, "cpu": cpu, "cores": 2}}
        )
        for trained, cpu in samples
    ]
    (folder / "ledger" / name).write_text("\n".join(lines) + '\n{"trained": 9, "mach')


def test_samples_between_which_nothing_was_trained_do_not_count(tmp_path: Path) -> None:
    written(
        tmp_path,
        "usage-0.jsonl",
        [(0, 0.0), (0, 50.0), (10, 90.0), (20, 100.0), (30, 95.0), (30, 5.0)],
    )
    (found,) = machines(tmp_path)
    assert (found.number, found.cores) == (0, 2)
    assert abs(found.busy - 0.95) < 1e-9


def test_machines_are_told_apart(tmp_path: Path) -> None:
    written(tmp_path, "usage-0.jsonl", [(0, 0.0), (1, 80.0), (2, 80.0), (3, 80.0)])
    written(tmp_path, "usage-2.jsonl", [(0, 0.0), (1, 20.0), (2, 20.0), (3, 20.0)], number=1)
    assert [(machine.number, round(machine.busy, 2)) for machine in machines(tmp_path)] == [
        (0, 0.8),
        (1, 0.2),
    ]


def test_short_runs_and_containers_that_tell_nothing_have_none(tmp_path: Path) -> None:
    assert machines(tmp_path) == []
    written(tmp_path, "usage-0.jsonl", [(0, 0.0), (1, 99.0), (2, 99.0)])
    assert machines(tmp_path) == []
    written(tmp_path, "usage-0.jsonl", [(0, None), (1, None), (2, None), (3, None)])
    assert machines(tmp_path) == []
