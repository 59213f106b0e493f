"""What ledgers add up to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.observe.ledger import KINDS, Ledger, epochs_path, ledger_path
from syrtos.observe.report import SHARES, SecondsByRank, summarize

seconds = st.floats(0, 100)


def step(
    wall: float = 1.0, *, wait: float = 0.0, phase: str = "train", steps: int = 1, samples: float = 8.0
) -> dict[str, Any]:
    spent = dict.fromkeys(KINDS, 0.0) | {"wait": wait, "compute": wall - wait}
    return {"phase": phase, "steps": steps, "samples": samples, "wall": wall, **spent}


def write(folder: Path, *ranks: list[dict[str, Any]], tail: str = "") -> Path:
    for rank, records in enumerate(ranks):
        path = ledger_path(folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
    return folder


def test_shares_of_a_real_ledger_add_up(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path), 0)
    for index in range(3):
        ledger.begin_step()
        for kind in KINDS:
            ledger.spend(kind, 0.001 * (index + 1))
        ledger.end_step(index, "train")
    ledger.close()
    summary = summarize(tmp_path)
    assert tuple(summary.shares) == SHARES
    assert sum(summary.shares.values()) == pytest.approx(1.0)


@given(st.lists(st.lists(seconds, min_size=len(SHARES), max_size=len(SHARES)), min_size=1, max_size=5))
def test_any_shares_add_up_to_all_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, spans: list[list[float]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    records = [step(sum(spent)) | dict(zip(SHARES, spent, strict=True)) for spent in spans]
    shares = summarize(write(folder, records)).shares
    assert sum(shares.values()) == pytest.approx(1.0 if any(map(sum, spans)) else 0.0)


def test_rates_and_steps_are_those_of_training_on_rank_0(tmp_path: Path) -> None:
    mine = [step(4.0), step(2.0, steps=2, samples=16.0), step(100.0, phase="test"), step(2.0)]
    summary = summarize(write(tmp_path, mine, [step(7.0)]))
    assert (summary.workers, summary.steps) == (2, 4)
    assert summary.samples_per_second == pytest.approx(32 / 8)


def test_the_first_step_is_left_out_of_the_median(tmp_path: Path) -> None:
    summary = summarize(write(tmp_path, [step(60.0), step(0.1), step(0.4, steps=2), step(0.9)]))
    assert summary.step_ms == pytest.approx(200.0)


def test_all_ranks_share_in_the_shares(tmp_path: Path) -> None:
    shares = summarize(write(tmp_path, [step(3.0)], [step(1.0, wait=1.0)])).shares
    assert shares["compute"] == pytest.approx(0.75)
    assert shares["wait"] == pytest.approx(0.25)


def test_who_waits_least_is_who_is_waited_for(tmp_path: Path) -> None:
    summary = summarize(write(tmp_path, [step(wait=0.5)], [step(wait=0.1)], [step(wait=0.6)]))
    assert summary.skew is not None
    assert summary.skew[0] == 1
    assert summary.skew[1] == pytest.approx(0.3)


def test_one_worker_waits_for_nobody(tmp_path: Path) -> None:
    assert summarize(write(tmp_path, [step()])).skew is None


def test_a_truncated_last_line_is_tolerated(tmp_path: Path) -> None:
    whole = [step(), step(), step()]
    summary = summarize(write(tmp_path, whole, tail=json.dumps(step())[:-9]))
    assert summary == summarize(write(tmp_path / "whole", whole))
    assert summary.steps == 3


def test_ranks_are_numbers(tmp_path: Path) -> None:
    ranks = [[step(wait=0.5)] for _ in range(12)]
    ranks[10] = [step()]
    skew = summarize(write(tmp_path, *ranks)).skew
    assert skew is not None
    assert skew[0] == 10


@pytest.mark.parametrize("ranks", [(), ([],), ([], []), ([step(phase="test")],)])
def test_without_training_there_is_nothing_to_say(tmp_path: Path, ranks: tuple[list[dict[str, Any]], ...]) -> None:
    summary = summarize(write(tmp_path, *ranks))
    assert (summary.steps, summary.samples_per_second, summary.step_ms) == (0, 0.0, 0.0)
    assert set(summary.shares.values()) == {0.0}


def test_notes_between_steps_do_not_count_as_steps(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path), 0)
    ledger.note("checkpoint", 5.0)
    ledger.close()
    summary = summarize(tmp_path)
    assert (summary.workers, summary.steps, summary.samples_per_second) == (1, 0, 0.0)


def test_a_rank_without_steps_is_not_the_slowest(tmp_path: Path) -> None:
    assert summarize(write(tmp_path, [step(wait=0.5)], [])).skew is None


def test_seconds_by_rank_are_read_as_they_come(tmp_path: Path) -> None:
    run = SecondsByRank(tmp_path)
    assert run.now() == []
    ledgers = [Ledger.open(str(tmp_path), rank) for rank in (0, 1)]
    for rank, ledger in enumerate(ledgers):
        ledger.note("exchange", 0.25 * (rank + 1), "between")
        ledger.flush()
    assert [rank["exchange"] for rank in run.now()] == [0.25, 0.5]
    ledgers[1].note("exchange", 1.0, "between")
    ledgers[1].flush()
    assert [rank["exchange"] for rank in run.now()] == [0.25, 1.5]
    for ledger in ledgers:
        ledger.close()


def test_epochs_are_written_by_rank_0_alone(tmp_path: Path) -> None:
    for rank in (0, 1):
        ledger = Ledger.open(str(tmp_path), rank)
        ledger.epoch(epoch=1, logs={"loss": 0.5})
        ledger.close()
    (line,) = epochs_path(tmp_path).read_text().splitlines()
    assert json.loads(line)["logs"] == {"loss": 0.5}
