"""Sources of records: a source knows the number of its records, and reads any of them."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from syrtos.data.plan import Indices
from syrtos.errors import DataError

Array = npt.NDArray[np.generic]
# Arrays, or tuples, lists and dicts of them.
ArrayTree: TypeAlias = "Array | Sequence[ArrayTree] | Mapping[str, ArrayTree]"


class BadRecord(DataError):
    """Error: a record can't be read.

    Attributes:
        index: the index of the record.
        file: the file in which it lies.
        offset: the byte, or row, of the file at which it begins.
        reason: the reason why it can't be read.
        raw: the bytes of it that could be read.
    """

    def __init__(self, index: int, file: str, offset: int, reason: str, raw: bytes = b"") -> None:
        super().__init__(f"Record {index} ({file}, offset {offset}) is bad: {reason}")
        self.index, self.file, self.offset, self.reason, self.raw = index, file, offset, reason, raw


class Source(abc.ABC):
    """Records that are read by their index, 0 to ``len() - 1``."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of records."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A text that identifies the data set; equal on all workers that read the same one."""

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """Bytes of all records together."""

    @abc.abstractmethod
    def read(self, indices: Indices) -> object:
        """Returns the records: a list of them, or arrays whose first dimension counts them.

        Raises:
            BadRecord: the first record that can't be read.
        """

    @abc.abstractmethod
    def place(self, index: int) -> tuple[str, int]:
        """Returns the file of a record, and the place in it."""

    def readers(self, indices: Indices, places: Indices) -> Indices | None:
        """Returns the rank that reads each of these records, chosen by its place of the order.

        None if every worker can read all records.
        """
        return None

    def prefetch(self, indices: Indices) -> None:  # noqa: B027
        """Begins to fetch records that `read` will ask for soon."""

    @property
    def groups(self) -> list[tuple[str, int, int]]:
        """Name, records and bytes of each file, for `syrtos data inspect`."""
        return [("", len(self), self.nbytes)]


def fingerprint_of(facts: object) -> str:
    """Returns a short hash of facts, by their `repr`."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


class Arrays(Source):
    """Arrays in memory, or mapped from ``.npy`` files, whose rows are the records."""

    def __init__(self, arrays: ArrayTree) -> None:
        """Checks that all arrays have rows, and as many.

        Args:
            arrays: an array, or nested tuples, lists and dicts of arrays with equal first
                dimensions.
        """
        self._arrays = arrays
        scalars = [type(leaf).__name__ for leaf in leaves(arrays) if not getattr(leaf, "shape", ())]
        if scalars:
            raise DataError(
                f"Arrays must have rows. Received a {scalars[0]}; lists of numbers become arrays by"
                " `numpy.asarray`."
            )
        rows = {len(leaf) for leaf in leaves(arrays)}
        if len(rows) != 1:
            raise DataError(f"Arrays must have the same number of rows. Received: {sorted(rows)}.")
        self._rows = rows.pop()

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together; see `Source.nbytes`."""
        return sum(int(leaf.nbytes) for leaf in leaves(self._arrays))

    @property
    def fingerprint(self) -> str:
        """A hash of shapes, dtypes and some of the rows."""
        digest = hashlib.sha256()
        # 16 rows: arrays may be mapped files that are larger than memory
        some = (
            np.unique(np.linspace(0, max(self._rows - 1, 0), 16).astype(np.int64))
            if self._rows
            else []
        )
        for leaf in leaves(self._arrays):
            digest.update(f"{leaf.dtype} {leaf.shape}".encode())
            # the bytes of objects are addresses, which differ between workers
            digest.update(
                np.ascontiguousarray(leaf[some]).tobytes()
                if self._rows and leaf.dtype != object
                else b""
            )
        return digest.hexdigest()[:16]

    def read(self, indices: Indices) -> Any:
        """Returns the rows of ``indices``, in the same structure of arrays."""
        chosen: Indices | slice = indices
        if len(indices) and (np.diff(indices) == 1).all():
            # a view: numpy copies the rows of an array of indices
            chosen = slice(int(indices[0]), int(indices[-1]) + 1)
        return map_arrays(lambda leaf: np.asarray(leaf[chosen]), self._arrays)

    def place(self, index: int) -> tuple[str, int]:
        """Returns ``"array"``, and the row; see `Source.place`."""
        return "array", index


def leaves(tree: ArrayTree) -> list[Array]:
    """Returns the arrays of a structure of tuples, lists and dicts, in order."""
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in leaves(tree[key])]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return [cast("Array", tree)]


def map_arrays(function: Callable[[Array], Array], tree: ArrayTree) -> ArrayTree:
    """Returns the structure with ``function`` applied to each array."""
    if isinstance(tree, dict):
        return {key: map_arrays(function, part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [map_arrays(function, part) for part in tree]
        # a named tuple takes its parts one by one
        kind = cast("Callable[..., ArrayTree]", type(tree))
        return kind(*parts) if hasattr(tree, "_fields") else kind(parts)
    return function(cast("Array", tree))


def stack_records(records: Sequence[Any]) -> Any:
    """Returns a structure of arrays from several equal structures.

    The structures are tuples and dicts of scalars, lists and arrays.
    """
    first = records[0]
    if isinstance(first, dict):
        return {key: stack_records([record[key] for record in records]) for key in first}
    if isinstance(first, tuple):
        return tuple(stack_records([record[k] for record in records]) for k in range(len(first)))
    return np.stack([np.asarray(record) for record in records])
