"""Facts about a data set on disk or in a store, for a look before training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from syrtos.data.cache import Cache
from syrtos.data.files import File
from syrtos.data.find import find
from syrtos.data.folder import IMAGES, Folder
from syrtos.data.lines import LineRecords, check_columns
from syrtos.data.parquet import Parquet
from syrtos.data.plan import Plan
from syrtos.data.records import Records
from syrtos.data.sources import Source
from syrtos.data.tfrecord import TFRecord, is_tfrecord
from syrtos.errors import DataError

# In this order: a file counts as the first kind whose ending it has.
_ENDINGS = {
    "images by class": IMAGES,
    "Parquet": (".parquet", ".pq"),
    "CSV": (".csv",),
    "lines": (".jsonl", ".ndjson", ".json", ".txt"),
    "TFRecord": (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz"),
}


@dataclasses.dataclass(frozen=True)
class DataShape:
    """Facts about a data set.

    Attributes:
        kind: the kind of its files.
        records: the number of records.
        nbytes: bytes of all records.
        groups: name, records and bytes of each file, or of each class of a folder.
        damaged: the number of records that are known to be bad without reading them.
    """

    kind: str
    records: int
    nbytes: int
    groups: list[tuple[str, int, int]]
    damaged: int

    @property
    def skew(self) -> float:
        """The records of the largest file, divided by the mean; 1 if all are equal."""
        return max(count for _, count, _ in self.groups) * len(self.groups) / max(self.records, 1)

    def by_files(self, workers: int) -> list[int]:
        """Returns the records of each worker if workers take whole files in turn.

        That is sharding by files.
        """
        return [sum(count for _, count, _ in self.groups[rank::workers]) for rank in range(workers)]

    def records_per_worker(self, workers: int, batch: int) -> list[int]:
        """Returns the records of each worker in a shuffled epoch of `syrtos.data`.

        ``batch`` is the size of the global batches.
        """
        plan = Plan("", self.records, batch, seed=0)
        return [
            sum(len(plan.share(step, rank, workers)) for step in range(plan.steps))
            for rank in range(workers)
        ]


def inspect(patterns: Sequence[str], cache: Cache) -> DataShape:
    """Indexes the files of a data set, and returns facts about it.

    Raises:
        DataError: there are no files, they are of several formats or of an unknown one, they have
            no records, or they can't be read.
    """
    files = find(patterns, cache)
    kind, source = _open_source(files, cache)
    if not len(source):
        raise DataError(
            f"{files[0].name} has no records ({kind}; {len(files)} files). Check the path."
        )
    return DataShape(
        kind, len(source), source.nbytes, source.groups, getattr(source, "damaged_count", 0)
    )


def _open_source(files: list[File], cache: Cache) -> tuple[str, Source]:
    # from the last to the first, so that the message names the first file of each kind
    by_kind = {_kind(file): file for file in reversed(files)}
    if "images by class" in by_kind:
        return "images by class", Folder(files, IMAGES)
    if len(by_kind) > 1:
        found = ", ".join(f"{file.name} ({kind})" for kind, file in by_kind.items())
        raise DataError(
            f"The files are of several formats: {found}. Name those of one data set, e.g."
            " `folder/*.csv`."
        )
    kind = next(iter(by_kind))
    if kind == "Parquet":
        return kind, Parquet(files, None, cache)
    if kind == "CSV":
        check_columns(files)
        return kind, Records(files, LineRecords(quotes=True, header=True), cache)
    return kind, Records(files, LineRecords() if kind == "lines" else TFRecord(), cache)


def _kind(file: File) -> str:
    """Returns the format that a file's name shows.

    A file whose name shows none must be TFRecord by its first bytes.
    """
    name = file.name.lower()
    for kind, endings in _ENDINGS.items():
        if name.endswith(endings):
            return kind
    if is_tfrecord(file):
        return "TFRecord"
    known = ", ".join(ending for endings in _ENDINGS.values() for ending in endings)
    raise DataError(
        f"{file.name} is no TFRecord file, and its name tells no other format. Names end with"
        f" {known}."
    )
