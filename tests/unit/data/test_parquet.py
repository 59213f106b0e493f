"""Parquet files."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from syrtos.data.cache import Cache
from syrtos.data.files import LocalFile
from syrtos.data.parquet import Parquet
from syrtos.errors import DataError


def parquet(folder: Path, *tables: dict[str, Any], columns: list[str] | None = None) -> Parquet:
    for number, table in enumerate(tables):
        pq.write_table(pa.table(table), folder / f"{number}.parquet")
    files = [LocalFile(folder / f"{number}.parquet") for number in range(len(tables))]
    return Parquet(files, columns, Cache(folder / "cache"))


def test_rows_of_all_files(tmp_path: Path) -> None:
    source = parquet(tmp_path, {"x": [1, 2]}, {"x": [3]})
    assert source.read(np.asarray([2, 0]))["x"].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"y": [1]}, r"1.parquet has no column \['x'\]"),
        ({"x": [1.5]}, "'x' is double in .*1.parquet, and int64 in .*0.parquet"),
        ({"x": [1], "y": [1]}, "'y' is int64 in .*1.parquet, and missing in .*0.parquet"),
    ],
)
def test_columns_that_differ_are_found_at_once(
    tmp_path: Path, second: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        parquet(tmp_path, {"x": [1]}, second)


def test_only_the_columns_that_are_read_must_agree(tmp_path: Path) -> None:
    source = parquet(tmp_path, {"x": [1], "y": [1]}, {"x": [2], "y": ["text"]}, columns=["x"])
    assert source.read(np.asarray([0, 1]))["x"].tolist() == [1, 2]


def test_a_full_disk_is_no_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = parquet(tmp_path, {"x": [1]})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(source, "_decode", full)
    with pytest.raises(OSError, match="No space left"):
        source.read(np.asarray([0]))
