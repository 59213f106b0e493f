"""Batches of one worker, and records that are bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syrtos.data.bad_records import BadRecords, left_out
from syrtos.data.loader import Loader
from syrtos.data.plan import Indices
from syrtos.data.sources import Arrays, BadRecord, stack_records
from syrtos.errors import ConfigurationError, DataError


class Numbers(Arrays):
    """Rows of which some can't be read, and others not parsed."""

    def __init__(self, count: int, bad: set[int], odd: set[int]) -> None:
        super().__init__(np.arange(count))
        self._bad, self._odd = bad, odd

    def read(self, indices: Indices) -> list[Any]:
        for index in indices.tolist():
            if index in self._bad:
                raise BadRecord(index, "file", index * 10, "broken", b"raw")
        return [b"?" if index in self._odd else str(index).encode() for index in indices.tolist()]


def parse(records: list[bytes]) -> np.ndarray:
    return stack_records([int(record) for record in records])


def loader(source: Arrays, on_bad_record: Any, budget: float = 0.5, seed: int | None = 1) -> Loader:
    return Loader(source, parse, 8, seed, BadRecords(on_bad_record, budget, len(source)))


def batches(data: Loader, rank: int, size: int) -> list[Any]:
    """The rows of each batch of one worker."""
    chunks = data.chunks(data.plan(), rank, size)
    return [part for chunk in chunks for part in np.split(chunk.data, chunk.splits[1:-1])]


def rows(data: Loader, size: int) -> list[int]:
    return [
        row for rank in range(size) for batch in batches(data, rank, size) for row in batch.tolist()
    ]


def test_all_rows_of_all_workers() -> None:
    for size in (1, 2, 3, 20):
        assert sorted(rows(loader(Numbers(50, set(), set()), "fail"), size)) == list(range(50))


def test_a_worker_without_records_gets_batches_without_rows() -> None:
    data = loader(Numbers(3, set(), set()), "fail")
    shapes = [batch.shape for rank in range(5) for batch in batches(data, rank, 5)]
    assert sorted(shapes) == [(0,), (0,), (1,), (1,), (1,)]


def test_bad_records_fail_with_their_place() -> None:
    with pytest.raises(BadRecord, match=r"Record 7 \(file, offset 70\) is bad: broken"):
        rows(loader(Numbers(50, {7}, set()), "fail"), 1)
    with pytest.raises(BadRecord, match=r"Record 9 .*ValueError: invalid literal"):
        rows(loader(Numbers(50, set(), {9}), "fail"), 1)


@pytest.mark.parametrize("size", [1, 3])
def test_bad_records_are_left_out_and_listed(tmp_path: Path, size: int) -> None:
    seen = []
    for rank in range(size):
        data = loader(Numbers(50, {7, 8}, {9}), "quarantine")
        data.policy.write_to(str(tmp_path), rank)
        assert len(batches(data, rank, size)) == 7
        seen += [
            row for batch in batches(data, rank, size) for row in batch.tolist()
        ]  # now they are known
    assert sorted(seen) == sorted(set(range(50)) - {7, 8, 9})
    assert {facts["index"] for facts in left_out(tmp_path)} == {7, 8, 9}
    assert (tmp_path / "data" / "quarantine" / "record-7-of-file").read_bytes() == b"raw"
    assert (tmp_path / "data" / "quarantine" / "record-9-of-array").read_bytes() == b"?"


def test_a_batch_of_bad_records_has_no_rows() -> None:
    data = loader(Numbers(16, set(range(8)), set()), "skip", seed=None)
    assert [batch.shape for batch in batches(data, 0, 1)] == [(0,), (8,)]


@pytest.mark.parametrize("budget", [2, 0.04])
def test_the_budget_ends_it(budget: float) -> None:
    with pytest.raises(DataError, match="3 records are bad, and at most 2 of 50"):
        rows(loader(Numbers(50, {1, 2, 3}, set()), "skip", budget), 1)


def test_an_error_that_is_no_records_fault_is_raised() -> None:
    def wrong(records: list[bytes]) -> np.ndarray:
        if len(records) > 1:
            raise RuntimeError("of the batch")
        return parse(records)

    data = Loader(Numbers(50, set(), set()), wrong, 8, None, BadRecords("skip", 0.5, 50))
    with pytest.raises(RuntimeError, match="of the batch"):
        rows(data, 1)


def test_what_can_not_be_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="on_bad_record"):
        BadRecords("ignore", 0, 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="bad_budget"):
        BadRecords("skip", -1, 1)
