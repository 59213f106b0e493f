"""What a data set on disk or in a store is, for people who look before they train."""

from __future__ import annotations

import dataclasses

from syrtos.data.cache import Cache
from syrtos.data.files import File, find
from syrtos.data.folder import IMAGES, Folder
from syrtos.data.lines import Lines
from syrtos.data.parquet import Parquet
from syrtos.data.plan import Plan
from syrtos.data.records import Records
from syrtos.data.sources import Source
from syrtos.data.tfrecord import TFRecord


@dataclasses.dataclass(frozen=True)
class Shape:
    """Facts about a data set.

    Attributes:
        kind: of its files.
        records: how many.
        nbytes: of all records.
        groups: name, records and bytes of each file, or of each class of a folder.
        damaged: records that are known to be bad without reading them.
    """

    kind: str
    records: int
    nbytes: int
    groups: list[tuple[str, int, int]]
    damaged: int

    @property
    def skew(self) -> float:
        """Records of the largest file over those of the mean one; 1 if all are equal."""
        return max(count for _, count, _ in self.groups) * len(self.groups) / max(self.records, 1)

    def by_files(self, workers: int) -> list[int]:
        """Records of each worker where workers take whole files in turn, as sharding by files does."""
        return [sum(count for _, count, _ in self.groups[rank::workers]) for rank in range(workers)]

    def planned(self, workers: int, batch: int) -> list[int]:
        """Records of each worker in a shuffled epoch of `syrtos.data`, with batches of so many."""
        plan = Plan("", self.records, batch, seed=0)
        return [sum(len(plan.share(step, rank, workers)) for step in range(plan.steps)) for rank in range(workers)]


def inspect(pattern: str, cache: Cache) -> Shape:
    """Finds out what the files of a pattern are, and indexes them.

    Raises:
        DataError: there are none, or they can't be read.
    """
    files = find(pattern, cache)
    kind, source = _opened(files, cache)
    return Shape(kind, len(source), source.nbytes, source.groups, getattr(source, "damaged", 0))


def _opened(files: list[File], cache: Cache) -> tuple[str, Source]:
    name = files[0].name.lower().removesuffix(".gz")
    if name.endswith(IMAGES):
        return "images by class", Folder(files, IMAGES)
    if name.endswith((".parquet", ".pq")):
        return "Parquet", Parquet(files, None, cache)
    if name.endswith(".csv"):
        return "CSV", Records(files, Lines(quotes=True, header=True), cache)
    if name.endswith((".jsonl", ".ndjson", ".json", ".txt")):
        return "lines", Records(files, Lines(), cache)
    return "TFRecord", Records(files, TFRecord(), cache)
