"""Data sets that use each record once in an epoch.

The order of records does not depend on the number of workers.

    train = syrtos.data.from_tfrecord(
        "data/train-*.tfrecord", parse_fn, batch_size=256, shuffle=True, seed=1
    )
    model.fit(train, epochs=5)

``batch_size`` is the size of a global batch, which is split over the workers. Each worker reads
only its own records. The result is passed to `fit`, `evaluate` and `predict`; its position is saved
with the model.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Required, TypedDict, TypeVar, Unpack

import numpy as np

from syrtos import settings
from syrtos.comm import world
from syrtos.data import cache
from syrtos.data.bad_records import BadRecords, OnBadRecord
from syrtos.data.files import File
from syrtos.data.find import Patterns, find
from syrtos.data.folder import IMAGES, Folder
from syrtos.data.lines import LineRecords, are_numbers, check_columns, csv_rows
from syrtos.data.loader import MEMORY, Loader, Position
from syrtos.data.parquet import Parquet
from syrtos.data.plan import Plan
from syrtos.data.records import Format, Records
from syrtos.data.sources import Arrays, ArrayTree, BadRecord, Source
from syrtos.data.tfrecord import TFRecord
from syrtos.errors import ConfigurationError, DataError

__all__ = [
    "BadRecord",
    "Dataset",
    "DatasetOptions",
    "Plan",
    "Source",
    "from_arrays",
    "from_csv",
    "from_folder",
    "from_jsonl",
    "from_parquet",
    "from_source",
    "from_tfrecord",
]

_SAMPLE = 1000  # rows by which columns of a CSV file are found to be numbers
Columns = TypeVar("Columns", bound=Mapping[str, object])


class DatasetOptions(TypedDict, total=False):
    """Options of all data sets; see `from_source`."""

    batch_size: Required[int]
    shuffle: bool | int
    seed: int
    on_bad_record: OnBadRecord
    bad_budget: float


class Dataset(Protocol):
    """A data set for `fit`, `evaluate` and `predict`; Keras sees it as a `PyDataset`.

    Attributes:
        name: the name of this data set in the script, the same in each run of the script.
        position: how far the last training has come.
    """

    name: str
    position: Position

    def __len__(self) -> int:
        """Returns the number of global batches in an epoch of `fit`."""
        ...

    def __getitem__(self, index: int) -> Any:
        """Returns this worker's share of a batch, as ``parse`` made it from the records."""
        ...


def from_tfrecord(
    pattern: Patterns, parse_fn: Callable[[Any], object], **options: Unpack[DatasetOptions]
) -> Dataset:
    """Makes a data set of TFRecord files, plain or compressed (GZIP, ZLIB).

    The checksum of each record is verified.

    Args:
        pattern: files, folders or patterns with ``*``; paths, or ``s3://``, ``gs://``, ``az://``,
            ``http(s)://``.
        parse_fn: turns one record (a string tensor, or bytes) into features, ``(x, y)`` or ``(x, y,
            sample_weight)``. A function written with TensorFlow's operations runs as a graph.
        options: ``batch_size``, ``shuffle`` and the other options of `from_source`.

    Returns:
        A data set for `fit`, `evaluate` and `predict`.

    Raises:
        DataError: no file is found, or there are no records.
    """
    return from_source(_records(*_find_files(pattern), TFRecord()), _each(parse_fn), **options)


def from_jsonl(
    pattern: Patterns,
    parse_fn: Callable[[Any], object] | None = None,
    *,
    label: str | None = None,
    **options: Unpack[DatasetOptions],
) -> Dataset:
    """Makes a data set of text files with one JSON value on each line.

    Args:
        pattern: see `from_tfrecord`.
        parse_fn: turns one value into features or ``(x, y)``, as NumPy values; by default objects
            become features by name.
        label: the field that is the label.
        options: see `from_source`.
    """
    row = functools.partial(_row, json.loads, parse_fn, label)
    return from_source(_records(*_find_files(pattern), LineRecords()), _each(row), **options)


def from_csv(
    pattern: Patterns,
    parse_fn: Callable[[dict[str, np.float32 | str]], object] | None = None,
    *,
    label: str | None = None,
    **options: Unpack[DatasetOptions],
) -> Dataset:
    """Makes a data set of CSV files; the first line of each file names the columns.

    Args:
        pattern: see `from_tfrecord`.
        parse_fn: turns a dict of values by column into features or ``(x, y)``; by default columns
            become features by name. Columns whose first rows are numbers are float32.
        label: the column that is the label.
        options: see `from_source`.
    """
    found, kept = _find_files(pattern)
    source = _records(found, kept, LineRecords(quotes=True, header=True))
    columns = check_columns(found)
    if label is not None and label not in columns:
        raise DataError(f"There is no column {label!r}: the first line names {columns}.")
    sample = _sample(source)
    row = functools.partial(_row, csv_rows(columns, are_numbers(sample, columns)), parse_fn, label)
    return from_source(source, _each(row), **options)


def from_parquet(
    pattern: Patterns,
    *,
    columns: Sequence[str] | None = None,
    label: str | None = None,
    **options: Unpack[DatasetOptions],
) -> Dataset:
    """Makes a data set of Parquet files.

    A batch is a dict of arrays by column, or ``(features, label)``.

    Args:
        pattern: see `from_tfrecord`.
        columns: the columns to read; all by default.
        label: the column that is the label.
        options: see `from_source`.
    """
    wanted = [*columns, *([label] if label and label not in columns else [])] if columns else None
    found, kept = _find_files(pattern)
    source = Parquet(found, wanted, kept)
    return from_source(source, functools.partial(_split, label=label), **options)


def from_arrays(*arrays: ArrayTree, **options: Unpack[DatasetOptions]) -> Dataset:
    """Makes a data set of arrays in memory, or mapped (``numpy.load(..., mmap_mode="r")``).

    Args:
        arrays: features, labels and sample weights; each an array, or a structure of arrays, with
            equal first dimensions.
        options: see `from_source`.
    """
    return from_source(Arrays(arrays[0] if len(arrays) == 1 else arrays), _same, **options)


def from_folder(
    pattern: Patterns,
    parse_fn: Callable[[Any, Any], object] | None = None,
    *,
    image_size: tuple[int, int] = (256, 256),
    suffixes: Sequence[str] = IMAGES,
    **options: Unpack[DatasetOptions],
) -> Dataset:
    """Makes a data set of a folder that has a folder for each class, of images or of other files.

    Args:
        pattern: see `from_tfrecord`.
        parse_fn: turns a file's bytes and the number of its class into ``(x, y)``; by default the
            image as float32, values 0 to 255.
        image_size: height and width that images are resized to.
        suffixes: the endings of the names of files that count.
        options: see `from_source`.
    """
    room = importlib.import_module("syrtos.keras.datasets.parsing")
    source = Folder(_find_files(pattern)[0], suffixes)
    return from_source(
        source, _each(parse_fn or functools.partial(room.image, image_size)), **options
    )


def from_source(
    source: Source,
    parse: Callable[[Any], object],
    *,
    batch_size: int,
    shuffle: bool | int = False,
    seed: int = 0,
    on_bad_record: OnBadRecord = "fail",
    bad_budget: float = 0.01,
) -> Dataset:
    """Makes a data set of any source of records.

    Args:
        source: the records.
        parse: turns the result of ``source.read`` for some records into arrays or tensors whose
            first dimension counts the records.
        batch_size: the number of records in a batch.
        shuffle: whether every epoch has another order; a number bounds the bytes of records that
            one process holds for it.
        seed: the seed of the order.
        on_bad_record: the treatment of a record that can't be read or parsed: ``"fail"``,
            ``"skip"`` (left out, and listed) or ``"quarantine"`` (its bytes are kept too).
        bad_budget: the most records that may be left out: a number, or below 1 a fraction of all.

    Returns:
        A data set for `fit`, `evaluate` and `predict`.

    Raises:
        ConfigurationError: an option has a value that is not allowed, or Keras 2 is in use.
        DataError: there are no records, or workers see different ones.
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(
            f"`batch_size` must be a whole number of records, 1 or more. Received: {batch_size!r}."
        )
    if shuffle < 0:
        raise ConfigurationError(
            f"`shuffle` must be True, False or a number of bytes. Received: {shuffle!r}."
        )
    if settings.environment().get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        raise ConfigurationError(
            "Keras 2 (TF_USE_LEGACY_KERAS) does not take data sets of `syrtos.data`: use Keras 3,"
            " or a `tf.data` pipeline."
        )
    _check_same(source)
    memory = MEMORY if isinstance(shuffle, bool) else shuffle
    policy = BadRecords(on_bad_record, bad_budget, len(source))
    loader = Loader(source, parse, batch_size, seed if shuffle else None, policy, memory)
    # by name and only now: the room of Keras is above this one, and imports it
    # Imported first: it decides what of Keras is adapted.
    planned = importlib.import_module("syrtos.keras.datasets.planned")
    importlib.import_module("syrtos.keras.activate").for_planned_data()
    return planned.PlannedDataset(loader)


def _check_same(source: Source) -> None:
    """Raises DataError if workers see different data sets."""
    mine = f"{source.fingerprint}, {len(source)} records"
    # one number each, which costs little; the texts are exchanged only for the message
    if len(set(world.init().comm.agree("compare data sets", float(zlib.crc32(mine.encode()))))) > 1:
        everyone = world.current().comm.allgather_object(mine)
        raise DataError(
            "Workers see different data sets:\n"
            + "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(everyone))
            + "\nEach must see all files: put them where every host finds them, or read them by"
            " URL. The plan then assigns records to workers."
        )


def _find_files(pattern: Patterns) -> tuple[list[File], cache.Cache]:
    """Returns the files, and the cache for their pieces and indexes."""
    kept = cache.default()
    return find(pattern, kept), kept


def _records(found: Sequence[File], kept: cache.Cache, layout: Format) -> Records:
    return Records(found, layout, kept, world.init().comm)


def _each(parse_fn: Callable[..., object]) -> Callable[[list[Any]], object]:
    return importlib.import_module("syrtos.keras.datasets.parsing").each(parse_fn)


def _sample(source: Records) -> list[bytes]:
    """Returns the readable ones among the first records."""
    found = []
    for index in range(min(len(source), _SAMPLE)):
        with contextlib.suppress(BadRecord):
            found += source.read(np.asarray([index], np.int64))
    return found


def _row(
    decode: Callable[[bytes], Columns],
    parse_fn: Callable[[Columns], object] | None,
    label: str | None,
    line: bytes,
) -> object:
    row = decode(line)
    return parse_fn(row) if parse_fn else _split(row, label)


def _split(columns: Mapping[str, object], label: str | None) -> object:
    if label is None:
        return columns
    if label not in columns:
        raise DataError(f"There is no column or field {label!r}; there are {[*columns]}.")
    return {name: values for name, values in columns.items() if name != label}, columns[label]


def _same(batch: ArrayTree) -> ArrayTree:
    return batch


# A model may be loaded before there is a data set, and its file may hold a position. Where our own
# room for Keras is what imports this one, it comes first.
if "keras" in sys.modules and "syrtos.keras" not in sys.modules:
    importlib.import_module("syrtos.keras.activate").for_planned_data()
