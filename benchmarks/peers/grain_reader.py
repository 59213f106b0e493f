"""Grain's reader of TFRecords: it takes one path and checks no checksums; records are left strings."""

from __future__ import annotations

from typing import Any

from grain.experimental import TFRecordIterDataset


class Grain:
    """Batches of all files."""

    def __init__(self, files: list[str], batch: int) -> None:
        self._files = files
        self._batch = batch

    def __iter__(self) -> Any:
        for path in self._files:
            yield from TFRecordIterDataset(path).batch(self._batch, batch_fn=list)
