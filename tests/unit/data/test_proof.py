"""The sample ledger proves that each record was used once, and says where it was not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from syrtos.data.bad_records import BadRecords
from syrtos.data.loader import Loader, Position, RecordShare
from syrtos.data.proof import SampleLedger, next_generation, verify
from syrtos.data.sources import Arrays
from syrtos.errors import DataError

NAME = "digits-0"


def loader(batch: int = 7) -> Loader:
    return Loader(Arrays(np.arange(50)), lambda rows: rows, batch, 3, BadRecords("fail", 0, 50))


def shares(data: Loader, position: Position, rank: int, size: int) -> Iterator[RecordShare]:
    return (
        share for chunk in data.chunks(data.plan(position), rank, size) for share in chunk.shares
    )


def train(
    run_dir: Path,
    size: int,
    start: Position,
    epochs: int,
    stop_after: int = 10**9,
    ended: bool = True,
    batch: int = 7,
) -> Position:
    """As `size` workers would, from ``start``; returns where they stopped."""
    data, end = loader(batch), start
    generation = next_generation(str(run_dir), NAME)
    for rank in range(size):
        ledger = SampleLedger(str(run_dir), NAME, rank, size)
        ledger.begin(data.plan(), start, generation)
        position, steps = start, 0
        while position.epoch < epochs and steps < stop_after:
            for share in shares(data, position, rank, size):
                ledger.add(share)
                position, steps = share.after, steps + 1
                if steps == stop_after:
                    break
        end = position
        if ended:
            ledger.end(position)
    return end


def test_a_run_of_two_epochs(tmp_path: Path) -> None:
    train(tmp_path, 3, Position(), 2)
    assert [(epoch.done, epoch.complete, epoch.workers) for epoch in verify(tmp_path)] == [
        (50, True, (3,))
    ] * 2


def test_another_world_goes_on_in_the_middle(tmp_path: Path) -> None:
    middle = train(tmp_path, 4, Position(), 2, stop_after=11)
    assert middle == Position(1, 21)
    train(tmp_path, 3, middle, 2)
    assert [(epoch.done, epoch.workers) for epoch in verify(tmp_path)] == [(50, (4,)), (50, (4, 3))]


def test_with_other_batches_too(tmp_path: Path) -> None:
    train(tmp_path, 2, train(tmp_path, 2, Position(), 1, stop_after=3), 1, batch=11)
    assert [(epoch.done, epoch.steps) for epoch in verify(tmp_path)] == [(50, 3 + 3)]


def test_steps_after_the_checkpoint_do_not_count(tmp_path: Path) -> None:
    train(
        tmp_path, 2, Position(), 1, stop_after=6, ended=False
    )  # killed; its last checkpoint was after step 4
    train(tmp_path, 1, Position(0, 28), 1)
    assert [(epoch.done, epoch.workers) for epoch in verify(tmp_path)] == [(50, (2, 1))]


def test_a_line_that_was_half_written_is_no_harm(tmp_path: Path) -> None:
    train(tmp_path, 1, Position(), 1, stop_after=4, ended=False)
    path = next((tmp_path / "data").glob("*rank-0.jsonl"))
    path.write_bytes(path.read_bytes()[:-30])
    train(tmp_path, 1, Position(0, 21), 1)
    assert verify(tmp_path)[0].complete


def test_an_epoch_that_is_not_complete_says_so(tmp_path: Path) -> None:
    train(tmp_path, 2, Position(), 1, stop_after=3)
    assert [(epoch.done, epoch.complete) for epoch in verify(tmp_path)] == [(21, False)]


def test_a_new_beginning_forgets_the_old(tmp_path: Path) -> None:
    train(tmp_path, 3, Position(), 2)
    train(tmp_path, 2, Position(), 1)
    assert [(epoch.epoch, epoch.workers) for epoch in verify(tmp_path)] == [(0, (2,))]


def change(run_dir: Path, rank: int, number: int, **facts: object) -> None:
    """Rewrites a line, with hashes that fit, as a faulty program would have written it."""
    path = next((run_dir / "data").glob(f"*rank-{rank}.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[number].update(facts)
    from syrtos.data import proof

    chain = ""
    for line in lines:
        line.pop("chain")
        chain = proof._link(chain, line)
        line["chain"] = chain
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_changed_line_breaks_the_chain(tmp_path: Path) -> None:
    train(tmp_path, 2, Position(), 1)
    path = next((tmp_path / "data").glob("*rank-1.jsonl"))
    path.write_text(path.read_text().replace('"left_out": 0', '"left_out": 1', 1))
    with pytest.raises(DataError, match=r"rank-1.jsonl, line 2: .* chain of hashes breaks"):
        verify(tmp_path)


def test_a_record_read_twice_is_found(tmp_path: Path) -> None:
    train(tmp_path, 2, Position(), 1)
    change(tmp_path, 1, 2, sum=12345)
    with pytest.raises(DataError, match="some twice, and some not at all"):
        verify(tmp_path)


def test_a_step_that_is_missing_is_found(tmp_path: Path) -> None:
    train(tmp_path, 1, Position(), 1)
    change(tmp_path, 0, 2, places=[8, 14])
    with pytest.raises(DataError, match="records are missing"):
        verify(tmp_path)


def test_a_worker_that_is_missing_is_found(tmp_path: Path) -> None:
    train(tmp_path, 2, Position(), 1)
    next((tmp_path / "data").glob("*rank-1.jsonl")).unlink()
    with pytest.raises(DataError, match=r"ranks \[0\] of 2"):
        verify(tmp_path)


def test_a_run_without_ledgers_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no sample ledgers"):
        verify(tmp_path)


def test_what_was_only_read_ahead_does_not_count(tmp_path: Path) -> None:
    """A run that was killed is known to have trained what it has marked."""
    train(tmp_path, 2, Position(), 1, stop_after=6, ended=False)
    assert verify(tmp_path) == []
    ledger = SampleLedger(str(tmp_path), NAME, 0, 1)
    data = loader()
    ledger.begin(data.plan(), Position(), next_generation(str(tmp_path), NAME))
    for share in [*shares(data, Position(), 0, 1)][:5]:
        ledger.add(share)
    ledger.note_reached(Position(0, 21), now=True)
    assert [(epoch.done, epoch.steps) for epoch in verify(tmp_path)] == [(21, 3)]


def test_threads_may_share_a_ledger(tmp_path: Path) -> None:
    """The one that reads ahead is still at it when the other ends training."""
    for _ in range(50):
        ledger = SampleLedger(str(tmp_path), NAME, 0, 1)
        data = loader(1)
        ledger.begin(data.plan(), Position(), 0)
        all_shares = [*shares(data, Position(), 0, 1)]
        thread = threading.Thread(target=lambda: [ledger.add(share) for share in all_shares])  # noqa: B023
        thread.start()
        ledger.end(Position(1))
        thread.join()
        path = next((tmp_path / "data").glob("*.jsonl"))
        assert path.read_text().count("until") == 1
        verify(tmp_path)
