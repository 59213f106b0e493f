"""Files whose records lie one after another; an index of their places is made once, and kept."""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from syrtos.comm.communicator import Communicator
from syrtos.data.cache import Cache
from syrtos.data.files import File, MissingFile, from_cache
from syrtos.data.plan import Indices
from syrtos.data.sources import BadRecord, Source, fingerprint_of
from syrtos.errors import DataError

# The condition of a record as far as indexing the file has shown it.
GOOD, TRUNCATED, BAD_LENGTH, MISSING = range(4)
_REASONS = {
    TRUNCATED: "the file ends inside of it",
    BAD_LENGTH: "the checksum of its length is wrong; what follows in this file can't be found",
    MISSING: "the file is missing",
}


class Format(abc.ABC):
    """The layout of records in a file.

    Attributes:
        name: the name of the format and of its index's layout.
        around: the number of bytes before and after a record's own that `unwrap` needs.
    """

    name: str
    around: tuple[int, int] = (0, 0)

    def unpacked_file(self, file: File, cache: Cache) -> File:
        """Returns the file itself, or its unpacked copy."""
        return file

    def unwrap_all(self, raws: Sequence[bytes]) -> list[bytes]:
        """Returns what `unwrap` makes of several records, which is quicker than one by one."""
        return [self.unwrap(raw) for raw in raws]

    @abc.abstractmethod
    def scan(self, file: File) -> Sequence[tuple[int, int, int]] | np.ndarray:
        """Returns start, length and condition of each record, shape (records, 3), int64."""

    def unwrap(self, raw: bytes) -> bytes:
        """Returns the record from its bytes and the bytes around it.

        Raises:
            ValueError: the bytes contradict each other.
        """
        return raw


class Records(Source):
    """The records of all files, file by file.

    A missing file counts as one record, which is bad.

    Workers may see different files, as on the hosts of a sharded SageMaker channel. The data set is
    all of them together, in the order of their names, and each file is read by the workers that see
    it.
    """

    def __init__(
        self, files: Sequence[File], layout: Format, cache: Cache, comm: Communicator | None = None
    ) -> None:
        """Indexes the files that have no index yet; the work is split over ``comm``'s workers."""
        self._files, self._seen_by = _union_of_workers(files, comm)
        self._format = layout
        self._cache = cache
        tables = _all_tables(self._files, self._seen_by, layout, cache, comm)
        self._starts, self._lengths, self._state = (
            np.concatenate([t[:, k] for t in tables]) for k in range(3)
        )
        self._first = np.concatenate([[0], np.cumsum([len(table) for table in tables])])

    def __len__(self) -> int:
        return int(self._first[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of all records together; see `Source.nbytes`."""
        return int(self._lengths.sum())

    @property
    def fingerprint(self) -> str:
        """A hash of names, sizes and numbers of records of the files."""
        counts = np.diff(self._first).tolist()
        # their folder does not count, as it may differ between hosts
        facts = [
            (Path(file.name).name, file.size, count)
            for file, count in zip(self._files, counts, strict=True)
        ]
        return fingerprint_of((self._format.name, facts))

    @property
    def groups(self) -> list[tuple[str, int, int]]:
        """Name, records and bytes of each file; see `Source.groups`."""
        counts = np.diff(self._first).tolist()
        return [
            (file.name, count, file.size) for file, count in zip(self._files, counts, strict=True)
        ]

    def readers(self, indices: Indices, places: Indices) -> Indices | None:
        """Returns the rank that reads each record if files differ between workers.

        See `Source.readers`.
        """
        if self._seen_by is None:
            return None
        able = [self._seen_by[file] for file in self._files_of(indices).tolist()]
        return np.asarray(
            [ranks[place % len(ranks)] for ranks, place in zip(able, places.tolist(), strict=True)],
            np.int64,
        )

    @property
    def damaged_count(self) -> int:
        """The number of records that are known to be bad before they are read."""
        return int(np.count_nonzero(self._state))

    def place(self, index: int) -> tuple[str, int]:
        """Returns the file of a record, and the byte at which it begins; see `Source.place`."""
        return self._files[int(self._files_of(index))].name, int(self._starts[index])

    def read(self, indices: Indices) -> list[bytes]:
        """Returns the records as bytes; see `Source.read`."""
        before, after = self._format.around
        files = self._files_of(indices).tolist()
        starts = (self._starts[indices] - before).tolist()
        stops = (self._starts[indices] + self._lengths[indices] + after).tolist()
        if self._state[indices].any():  # known to be bad from the index: nothing needs to be read
            self._raise_first(indices)
        wanted = [*zip(files, starts, stops, strict=True)]
        try:
            reads = {file: self._open_file(file).read for file in set(files)}
            return self._format.unwrap_all(
                [reads[file](start, stop) for file, start, stop in wanted]
            )
        except (ValueError, DataError):
            # one by one, to find out which is bad, and to fetch damaged copies anew
            return [
                self._one(int(index), *place) for index, place in zip(indices, wanted, strict=True)
            ]

    def prefetch(self, indices: Indices) -> None:
        """Begins to fetch the ranges of these records; see `Source.prefetch`."""
        files = self._files_of(indices)
        for file in np.unique(files).tolist():
            mine = indices[files == file]
            ranges = zip(
                self._starts[mine].tolist(),
                (self._starts[mine] + self._lengths[mine]).tolist(),
                strict=True,
            )
            self._open_file(file).prefetch([*ranges])

    def _one(self, index: int, file: int, start: int, stop: int) -> bytes:
        """Returns one record, and fetches a damaged copy of it anew.

        Raises:
            BadRecord: the record stays bad.
        """
        raw = b""
        while True:
            try:
                raw = self._open_file(file).read(start, stop)
                return self._format.unwrap(raw)
            except (ValueError, DataError) as error:
                opened = self._open_files.get(file)
                if opened is None or not opened.forget(start, stop):
                    raise BadRecord(index, *self.place(index), str(error), raw) from error

    def _raise_first(self, indices: Indices) -> None:
        index = int(indices[np.flatnonzero(self._state[indices])[0]])
        raise BadRecord(index, *self.place(index), _REASONS[int(self._state[index])])

    @overload
    def _files_of(self, indices: int) -> np.intp: ...
    @overload
    def _files_of(self, indices: Indices) -> npt.NDArray[np.intp]: ...
    def _files_of(self, indices: int | Indices) -> np.intp | npt.NDArray[np.intp]:
        """Returns the number of the file of a record, or of each of several."""
        return np.searchsorted(self._first, indices, side="right") - 1

    @functools.cached_property
    def _open_files(self) -> dict[int, File]:
        return {}

    def _open_file(self, number: int) -> File:
        found = self._open_files.get(number)
        if found is None:
            found = self._open_files[number] = self._format.unpacked_file(
                self._files[number], self._cache
            )
        return found


class _Elsewhere(File):
    """A file that other workers see."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size, self.version = name, size, "elsewhere"

    def read(self, start: int, stop: int) -> bytes:
        """Raises DataError, because this worker can't read the file."""
        raise DataError(
            f"{self.name} is not seen by this worker. Put all files where each worker finds them,"
            " or read them by URL."
        )


def _union_of_workers(
    files: Sequence[File], comm: Communicator | None
) -> tuple[list[File], list[list[int]] | None]:
    """Returns the files that any worker sees, and the ranks that see each.

    The ranks are None if all workers see all files.
    """
    mine = {(file.name, file.size): file for file in files if file.version != "missing"}
    lacking = [file.name for file in files if file.version == "missing"]
    everyone = comm.allgather_object({"seen": [*mine], "lacking": lacking}) if comm else []
    seen: list[set[tuple[str, int]]] = [{*theirs["seen"]} for theirs in everyone]
    if all(theirs == seen[0] for theirs in seen):
        return [*files], None
    # a file that no worker sees is one bad record on all of them; one that some see is lacking
    # nowhere
    nowhere = {name for theirs in everyone for name in theirs["lacking"]} - {
        name for theirs in seen for name, _ in theirs
    }
    seen = [theirs | {(name, 0) for name in nowhere} for theirs in seen]
    mine |= {(name, 0): MissingFile(name) for name in nowhere}
    union = sorted({key for theirs in seen for key in theirs})
    twice = {name for (name, _), (other, _) in itertools.pairwise(union) if name == other}
    if twice:
        raise DataError(
            f"{sorted(twice)[0]} has another size on some workers: copies must be equal. Copy it"
            " again."
        )
    return [mine.get(key) or _Elsewhere(*key) for key in union], [
        [r for r, theirs in enumerate(seen) if key in theirs] for key in union
    ]


def _all_tables(
    files: Sequence[File],
    seen_by: list[list[int]] | None,
    layout: Format,
    cache: Cache,
    comm: Communicator | None,
) -> list[np.ndarray]:
    """Returns the index of each file.

    Each worker makes a part of the indexes, and all workers get all.
    """
    rank, size = (comm.rank, comm.size) if comm else (0, 1)
    # each file is indexed by one worker that sees it, in turn
    makers = [seen_by[k][k % len(seen_by[k])] if seen_by else k % size for k in range(len(files))]
    mine = [
        _table(file, layout, cache)
        for file, maker in zip(files, makers, strict=True)
        if maker == rank
    ]
    if comm is None or size == 1:
        return mine
    counts = comm.allgather(np.asarray([len(table) for table in mine], np.int64))
    rows = comm.allgather(np.concatenate([np.zeros((0, 3), np.int64), *mine]))
    parts = np.split(rows, np.cumsum(counts)[:-1]) if len(counts) else []
    # what was gathered is in the order of the makers, and of the files of each
    order = sorted(range(len(files)), key=lambda k: (makers[k], k))
    return [part for _, part in sorted(zip(order, parts, strict=True), key=lambda pair: pair[0])]


def _table(file: File, layout: Format, cache: Cache) -> np.ndarray:
    """Returns the index of a file, shape (records, 3), int64.

    The index is kept in the cache by the file's version.
    """
    if file.version == "missing":
        return np.asarray([[0, 0, MISSING]], np.int64)

    def make(path: Path) -> None:
        rows = np.asarray(layout.scan(layout.unpacked_file(file, cache)), np.int64).reshape(-1, 3)
        with path.open("wb") as out:
            np.save(out, rows, allow_pickle=False)

    name = f"{layout.name} {file.name} {file.version}"
    return from_cache(lambda: np.load(cache.file("index", name, make), allow_pickle=False))
