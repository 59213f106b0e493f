"""The parts of a run's time add up to it, whatever happened."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import Line, generation, step

from syrtos.report import waterfall
from syrtos.report.read import load

BEFORE: list[Line] = [
    {"phase": "script", "wall": 1.0, "start": 1.0},
    {"phase": "script", "wall": 3.0, "import": 2.0, "rest": 1.0},
]


def test_one_generation(tmp_path: Path) -> None:
    lines = [
        *BEFORE,
        *(step(n, wait=0.02) for n in range(10)),
        {"phase": "test", "wall": 0.5, "compute": 0.5, "in_fit": True},
    ]
    generation(tmp_path, 100.0, 107.0, [lines, lines])
    seconds = waterfall.of_run(load(tmp_path))
    assert sum(seconds.values()) == pytest.approx(7.0)
    assert seconds["start"] == pytest.approx(1.5)  # and 0.5 s before the process
    assert seconds["import"] == pytest.approx(2.0)
    assert seconds["script"] == pytest.approx(1.0)
    assert seconds["compute"] == pytest.approx(0.8)
    assert seconds["wait"] == pytest.approx(0.2)
    assert seconds["evaluation"] == pytest.approx(0.5)
    assert seconds["end"] == pytest.approx(1.0)
    assert seconds["lost"] == 0


def test_what_a_restart_costs_is_lost(tmp_path: Path) -> None:
    """Ten steps, of which four are computed again; the next generation needs 4.5 s until its first step."""
    generation(
        tmp_path, 0.0, 8.0, [[*BEFORE, *(step(n) for n in range(10))]] * 2, outcome="CRASHED"
    )
    again = [*BEFORE, {"phase": "facts", "trained": 6}, *(step(n) for n in range(6, 20))]
    generation(tmp_path / "generation-2", 8.0, 16.0, [again] * 2)
    run = load(tmp_path)
    seconds = waterfall.of_run(run)
    assert sum(seconds.values()) == pytest.approx(16.0) == run.seconds
    # four steps, 2.5 s until the end was noticed, and 4.5 s until the first new step
    assert seconds["lost"] == pytest.approx(0.4 + 2.5 + 4.5)
    assert seconds["compute"] == pytest.approx(0.6 + 1.4)
    assert waterfall.goodput(seconds) == pytest.approx(1 - 7.4 / 16)


def test_a_generation_that_made_no_step_has_only_cost_time(tmp_path: Path) -> None:
    generation(tmp_path, 0.0, 8.0, [[*BEFORE, *(step(n) for n in range(10))]], outcome="CRASHED")
    generation(tmp_path / "generation-2", 8.0, 13.0, [BEFORE], outcome="CRASHED")
    again = [*BEFORE, {"phase": "facts", "trained": 10}, *(step(n) for n in range(10, 20))]
    generation(tmp_path / "generation-3", 13.0, 20.0, [again])
    seconds = waterfall.of_run(load(tmp_path))
    assert sum(seconds.values()) == pytest.approx(20.0)
    assert seconds["lost"] == pytest.approx(2.5 + 5.0 + 4.5)


def test_a_worker_that_left_nothing(tmp_path: Path) -> None:
    """Before it is known how the run ends its parts end with its last line."""
    generation(tmp_path, 0.0, None, [[*BEFORE, *(step(n) for n in range(10))]])
    run = load(tmp_path, goes_on=True)
    assert sum(waterfall.of_run(run).values()) == pytest.approx(5.5) == run.seconds


def test_clocks_of_hosts_that_differ(tmp_path: Path) -> None:
    """A ledger may be longer than the launcher's time by a little: the parts are those of the launcher's."""
    generation(tmp_path, 0.0, 5.2, [[*BEFORE, *(step(n) for n in range(10))]])
    assert sum(waterfall.of_run(load(tmp_path)).values()) == pytest.approx(5.2)
