"""What is recommended, and what is not, for records that are made for it. Real runs: tests/e2e/test_advice.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorded import Line, generation, step

from syrtos.report import advice, facts, situation
from syrtos.report.advice import Recommendation
from syrtos.report.read import load

BEFORE: list[Line] = [{"phase": "script", "wall": 1.0, "start": 1.0}]


def findings(folder: Path, *ranks: list[Line], **said: Any) -> list[Recommendation]:
    generation(folder, 0.0, 60.0, [BEFORE + lines for lines in ranks], facts=said)
    found = situation.of(load(folder))
    assert found is not None
    return advice.findings(found)


def steps(count: int = 300, wall: float = 0.02, **kinds: float) -> list[Line]:
    return [step(number, wall, **kinds) for number in range(count)]


def test_a_run_that_computes_is_told_nothing(tmp_path: Path) -> None:
    assert findings(tmp_path, steps(wait=0.0004), steps(exchange=0.0004)) == []


@pytest.mark.parametrize(("exchange", "found"), [("mpi", ["slow worker"]), ("compiled", [])])
def test_where_xla_exchanges_no_worker_is_called_slow_to_compute(
    tmp_path: Path, exchange: str, found: list[str]
) -> None:
    """The worker that asks first for a result waits within XLA's program, and the others for it."""
    rules = [
        finding.rule
        for finding in findings(
            tmp_path, steps(wall=0.05), steps(wall=0.05, wait=0.045), exchange=exchange
        )
    ]
    assert rules == found


def test_one_worker_would_have_to_read_everything(tmp_path: Path) -> None:
    """Reading is divided among four: one worker alone is not faster."""
    found = findings(
        tmp_path, *[steps(wall=0.014, input=0.004, exchange=0.009)] * 4, input="planned"
    )
    assert [finding.rule for finding in found] == ["slow input"]


@pytest.mark.parametrize(
    ("kind", "names", "does_not_name"),
    [
        ("dataset", "prefetch", "num_workers"),
        ("prefetched", "num_parallel_calls", "prefetch"),
        ("loader", "num_workers", "prefetch"),
        ("py_dataset", "workers=4", "prefetch"),
        ("generator", "PyDataset", "prefetch"),
    ],
)
def test_slow_input_names_what_the_data_lacks(
    tmp_path: Path, kind: str, names: str, does_not_name: str
) -> None:
    (found,) = findings(tmp_path, steps(input=0.01), input_of=kind)
    assert found.rule == "slow input"
    assert names in found.action
    assert does_not_name not in found.action


def test_small_steps_whose_computing_hardly_grows(tmp_path: Path) -> None:
    """Each fifth step has half the samples and computes nearly as long: one worker computes all in 2.2 ms, and two meet for 3 ms."""
    lines = [
        step(n, 0.005 if n % 5 else 0.0049, samples=8 if n % 5 else 4, exchange=0.003)
        for n in range(1000)
    ]
    (found,) = findings(tmp_path, lines, lines)
    assert found.rule == "tiny batches"
    assert found.gain == pytest.approx(5 / 2.2, rel=0.1)


@pytest.mark.parametrize(
    ("on", "words"), [((0,), "callbacks of rank 0"), ((0, 1), "callbacks take 50%")]
)
def test_callbacks(tmp_path: Path, on: tuple[int, ...], words: str) -> None:
    slow = [steps(callbacks=0.01) if rank in on else steps(wait=0.01) for rank in (0, 1)]
    (found,) = findings(tmp_path, *slow, callback_seconds={"Mine": 3.0, "AfterUsers": 9.0})
    assert words in found.cost
    assert "`Mine`" in found.action
    assert ("the other workers wait" in found.cost) is (len(on) == 1)
    assert found.gain == pytest.approx(2.0)


def test_snapshots_are_no_checkpoints_of_the_script(tmp_path: Path) -> None:
    assert findings(tmp_path, *[steps(checkpoint=0.01)] * 2, snapshot_seconds={"all": 3.0}) == []


def test_the_last_generation_that_trained_is_asked(tmp_path: Path) -> None:
    """One that died while it imported has said nothing about its data."""
    generation(
        tmp_path,
        0.0,
        10.0,
        [BEFORE + steps(input=0.01)] * 2,
        facts={"input": "sliced"},
        outcome="CRASHED",
    )
    generation(tmp_path / "generation-2", 10.0, 12.0, [BEFORE] * 2, outcome="CRASHED")
    found = situation.of(load(tmp_path))
    assert found is not None
    assert "read its own records" in str(advice.findings(found)[0])


def test_workers_at_their_own_pace_are_told_nothing(tmp_path: Path) -> None:
    """And their samples are all counted, also of those that made more steps."""
    lines = BEFORE + steps(1000), BEFORE + steps(20, wall=1.0)
    generation(tmp_path, 0.0, 30.0, lines, facts={"training": "asynchronous"})
    run = load(tmp_path)
    assert situation.of(run) is None
    found = facts.of_run(run)
    assert found["samples_per_second"] == pytest.approx(1020 * 8 / 20)
    assert all(seconds >= 0 for rank in found["ranks"] for seconds in rank["seconds"].values())
    assert not any("waited" in outlier["why"] for outlier in found["steps"]["outliers"])


def test_a_slow_host_is_named(tmp_path: Path) -> None:
    generation(tmp_path, 0.0, 60.0, [BEFORE + steps(wait=0.01)] * 4, facts={"hosts": 2})
    slow = [{"phase": "facts", "node": 1, "host": "b"}, *BEFORE, *steps()]
    fast = [{"phase": "facts", "node": 0, "host": "a"}, *BEFORE, *steps(wait=0.01)]
    generation(tmp_path, 0.0, 60.0, [fast, fast, slow, slow], facts={"hosts": 2})
    found = situation.of(load(tmp_path))
    assert found is not None
    (finding,) = advice.findings(found)
    assert finding.rule == "slow host"
    assert "look at b" in finding.action


@pytest.mark.parametrize(("pauses", "found"), [(2, []), (30, ["slow worker"])])
def test_pauses_of_a_worker(tmp_path: Path, pauses: int, found: list[str]) -> None:
    """One or two are no slow worker, many are."""
    paused = [step(number, 4.0, rest=3.99) for number in range(pauses)]
    assert [f.rule for f in findings(tmp_path, steps(), [*steps(300 - pauses), *paused])] == found


def test_runs_of_other_lengths_can_be_compared(tmp_path: Path) -> None:
    """The first step takes long in both."""
    for name, count in (("short", 30), ("long", 600)):
        generation(
            tmp_path / name, 0.0, 60.0, [[*BEFORE, step(0, 3.0, trace=2.5), *steps(count)]] * 2
        )
    rates = [
        situation.samples_per_second(load(tmp_path / name), without_first=True)
        for name in ("short", "long")
    ]
    assert rates[0] == pytest.approx(rates[1])


def test_evaluations_take_most_of_the_time(tmp_path: Path) -> None:
    lines = [
        *steps(),
        *({"phase": "test", "wall": 1.0, "compute": 1.0, "in_fit": True} for _ in range(6)),
    ]
    (found,) = findings(tmp_path, lines, lines)
    assert found.rule == "frequent evaluation"
    assert found.cost == "evaluation takes 50% of training and evaluation"
    assert found.gain == pytest.approx(12 / 7.2)
