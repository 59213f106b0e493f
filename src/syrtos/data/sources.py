"""Sources of records: a source knows its number of records, and reads any of them."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from syrtos.data.plan import Indices
from syrtos.errors import DataError


class BadRecord(DataError):
    """One record can't be read.

    Attributes:
        index: the record's.
        file: where it lies.
        offset: at which byte, or row, of the file.
        raw: the bytes that could be read of it.
    """

    def __init__(self, index: int, file: str, offset: int, reason: str, raw: bytes = b"") -> None:
        super().__init__(f"Record {index} ({file}, offset {offset}) is bad: {reason}")
        self.index, self.file, self.offset, self.reason, self.raw = index, file, offset, reason, raw


class Source(abc.ABC):
    """Records by index, 0 to ``len() - 1``."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Identifies the data set; equal on all workers that read the same one."""

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """Bytes of all records together."""

    @abc.abstractmethod
    def read(self, indices: Indices) -> Any:
        """The records: a list of them, or arrays whose first dimension they are.

        Raises:
            BadRecord: the first that can't be read.
        """

    @abc.abstractmethod
    def place(self, index: int) -> tuple[str, int]:
        """The file of a record, and where in it."""

    def readers(self, indices: Indices, places: Indices) -> Indices | None:
        """The ranks that read these records, where not every worker can read all: for each its rank, chosen by its place of the order."""
        return None

    def prefetch(self, indices: Indices) -> None:  # noqa: B027
        """Begins to fetch what `read` will ask for soon."""

    @property
    def groups(self) -> list[tuple[str, int, int]]:
        """Name, records and bytes of each file, for `syrtos data inspect`."""
        return [("", len(self), self.nbytes)]


def fingerprint_of(facts: object) -> str:
    """Of facts that are told apart by how they are written."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


class Arrays(Source):
    """Arrays in memory, or mapped from ``.npy`` files: their rows are the records."""

    def __init__(self, arrays: Any) -> None:
        """``arrays``: an array, or nested tuples, lists and dicts of arrays with equal first dimensions."""
        self._arrays = arrays
        scalars = [type(leaf).__name__ for leaf in leaves(arrays) if not getattr(leaf, "shape", ())]
        if scalars:
            raise DataError(
                f"Arrays must have rows. Received a {scalars[0]}; lists of numbers become arrays by `numpy.asarray`."
            )
        rows = {len(leaf) for leaf in leaves(arrays)}
        if len(rows) != 1:
            raise DataError(f"Arrays must have the same number of rows. Received: {sorted(rows)}.")
        self._rows = rows.pop()

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """See `Source.nbytes`."""
        return sum(int(leaf.nbytes) for leaf in leaves(self._arrays))

    @property
    def fingerprint(self) -> str:
        """Of shapes, dtypes and some of the rows."""
        digest = hashlib.sha256()
        some = np.unique(np.linspace(0, max(self._rows - 1, 0), 16).astype(np.int64)) if self._rows else []
        for leaf in leaves(self._arrays):
            digest.update(f"{leaf.dtype} {leaf.shape}".encode())
            digest.update(np.ascontiguousarray(leaf[some]).tobytes() if self._rows and leaf.dtype != object else b"")
        return digest.hexdigest()[:16]

    def read(self, indices: Indices) -> Any:
        """The same structure, with the rows of ``indices``."""
        if len(indices) and (np.diff(indices) == 1).all():
            indices = slice(int(indices[0]), int(indices[-1]) + 1)  # type: ignore[assignment]
        return mapped(lambda leaf: np.asarray(leaf[indices]), self._arrays)

    def place(self, index: int) -> tuple[str, int]:
        """See `Source.place`."""
        return "array", index


def leaves(tree: Any) -> list[Any]:
    """The arrays of a structure of tuples, lists and dicts, in order."""
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in leaves(tree[key])]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def mapped(function: Any, tree: Any) -> Any:
    """The structure with ``function`` of each array."""
    if isinstance(tree, dict):
        return {key: mapped(function, part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [mapped(function, part) for part in tree]
        return (
            type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
        )  # a named tuple takes them one by one
    return function(tree)


def stacked(records: Sequence[Any]) -> Any:
    """One structure of arrays from several equal structures (tuples, dicts) of scalars, lists and arrays."""
    first = records[0]
    if isinstance(first, dict):
        return {key: stacked([record[key] for record in records]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked([record[k] for record in records]) for k in range(len(first)))
    return np.stack([np.asarray(record) for record in records])
