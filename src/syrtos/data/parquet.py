"""Parquet files, read by columns."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from syrtos.data.cache import Cache
from syrtos.data.files import File, LocalFile, is_of_this_host
from syrtos.data.plan import Indices
from syrtos.data.sources import BadRecord, Source, fingerprint_of
from syrtos.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_OPEN_GROUPS = 256  # row groups that stay mapped: each holds a descriptor


class Parquet(Source):
    """The rows of all Parquet files; a batch is a dict of arrays by column."""

    def __init__(self, files: Sequence[File], columns: Sequence[str] | None, cache: Cache) -> None:
        """Reads the footers of the files.

        Raises:
            ConfigurationError: pyarrow is not installed.
            DataError: a file is missing or no Parquet, or has no such column, or columns differ
                between files.
        """
        self._files = [*files]
        self._columns = list(columns) if columns else None
        self._cache = cache
        metas = [_footer(file) for file in self._files]
        groups = [
            (k, g, meta.row_group(g))
            for k, meta in enumerate(metas)
            for g in range(meta.num_row_groups)
        ]
        self._check_columns(metas)
        self._groups = [(k, g) for k, g, _ in groups]
        self._first = np.concatenate([[0], np.cumsum([rg.num_rows for _, _, rg in groups])]).astype(
            np.int64
        )
        self._nbytes = sum(rg.total_byte_size for _, _, rg in groups)
        self._metas = metas

    def _check_columns(self, metas: Sequence[pq.FileMetaData]) -> None:
        schemas = [meta.schema.to_arrow_schema() for meta in metas]
        for file, schema in zip(self._files, schemas, strict=True):
            missing = set(self._columns or schemas[0].names) - set(schema.names)
            if missing:
                raise DataError(
                    f"{file.name} has no column {sorted(missing)}; there are {schema.names}."
                )
            for name in self._columns or schema.names:
                first = schemas[0].field(name).type if name in schemas[0].names else None
                if schema.field(name).type != first:
                    raise DataError(
                        f"The columns of Parquet files must be the same. {name!r} is"
                        f" {schema.field(name).type} in {file.name}, and {first or 'missing'} in"
                        f" {self._files[0].name}. Name the columns to read (`columns=`), or write"
                        " the files again."
                    )

    def __len__(self) -> int:
        return int(self._first[-1])

    @property
    def nbytes(self) -> int:
        """Uncompressed bytes of all row groups together; see `Source.nbytes`."""
        return self._nbytes

    @property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and rows of the files."""
        facts = [
            (Path(file.name).name, file.size, meta.num_rows)
            for file, meta in zip(self._files, self._metas, strict=True)
        ]
        return fingerprint_of(facts)

    @property
    def groups(self) -> list[tuple[str, int, int]]:
        """Name, rows and bytes of each file; see `Source.groups`."""
        return [
            (file.name, meta.num_rows, file.size)
            for file, meta in zip(self._files, self._metas, strict=True)
        ]

    def place(self, index: int) -> tuple[str, int]:
        """Returns the file, and the row in it."""
        group = int(np.searchsorted(self._first, index, side="right") - 1)
        number = self._groups[group][0]
        begin = next(k for k, (file, _) in enumerate(self._groups) if file == number)
        return self._files[number].name, index - int(self._first[begin])

    def read(self, indices: Indices) -> dict[str, np.ndarray]:
        """Returns the rows as arrays by column; see `Source.read`."""
        groups = np.searchsorted(self._first, indices, side="right") - 1
        parts, order = [], []
        for group in np.unique(groups).tolist():
            (mine,) = np.nonzero(groups == group)
            try:
                parts.append(self._table(group).take(indices[mine] - self._first[group]))
            except (DataError, OSError, ValueError) as error:  # pyarrow's errors are of these
                if isinstance(error, OSError) and is_of_this_host(error):
                    raise
                index = int(indices[mine[0]])
                raise BadRecord(index, *self.place(index), str(error)) from error
            order.append(mine)
        import pyarrow as pa

        table = pa.concat_tables(parts) if parts else self._table(0).slice(0, 0)
        # rows were taken group by group; this puts them into the order of `indices`
        back = np.argsort(np.concatenate(order)) if order else np.zeros(0, np.int64)
        return {name: _values(table[name])[back] for name in table.column_names}

    @functools.cached_property
    def _tables(self) -> dict[int, pa.Table]:
        return {}

    def _table(self, group: int) -> pa.Table:
        """Returns the rows of a row group, mapped from the cache."""
        import pyarrow as pa

        found = self._tables.get(group)
        if found is None:
            number, inside = self._groups[group]
            file = self._files[number]
            # a row group is compressed as a whole: it is decoded once, into a file of which any row
            # can be read
            name = f"row group {inside} of {file.name} {file.version} {self._columns}"
            path = self._cache.file(
                "unpacked", name, functools.partial(self._decode, number, inside)
            )
            found = self._tables[group] = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            if len(self._tables) > _OPEN_GROUPS:
                self._tables.pop(next(iter(self._tables)), None)
        return found

    def _decode(self, number: int, group: int, to: Path) -> None:
        import pyarrow as pa

        table = _parquet_file(self._files[number]).read_row_group(group, columns=self._columns)
        with pa.ipc.new_file(str(to), table.schema) as writer:
            # of one piece, so that each column is read as one array without a copy
            writer.write_table(table.combine_chunks())


def _values(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a column as an array.

    Numbers stay as they are, fixed-size lists become matrices, and text becomes objects.
    """
    import pyarrow as pa

    array = column.combine_chunks()
    if pa.types.is_fixed_size_list(column.type) or (pa.types.is_list(column.type) and len(array)):
        rows = array.to_numpy(zero_copy_only=False)
        return np.stack(rows) if len(rows) else np.zeros((0, getattr(column.type, "list_size", 0)))
    return array.to_numpy(zero_copy_only=False)


def _footer(file: File) -> pq.FileMetaData:
    return _parquet_file(file).metadata


def _parquet_file(file: File) -> pq.ParquetFile:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigurationError("Parquet files need pyarrow: `pip install pyarrow`.") from error
    try:
        return pq.ParquetFile(
            file.name if isinstance(file, LocalFile) else pa.PythonFile(_Seekable(file), mode="r")
        )
    except pa.ArrowInvalid as error:
        raise DataError(f"{file.name} is no Parquet file: {str(error).rstrip('.')}.") from error


class _Seekable:
    """A `File` with the interface of Python's own files, for pyarrow."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0

    def read(self, size: int = -1) -> bytes:
        stop = (
            self._file.size if size is None or size < 0 else min(self._at + size, self._file.size)
        )
        found, self._at = self._file.read(self._at, stop), stop
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def flush(self) -> None:
        return
