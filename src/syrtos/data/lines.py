"""Text files whose lines are the records: JSON lines, CSV, plain text."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Sequence

import numpy as np

from syrtos.data.files import File
from syrtos.data.records import Format
from syrtos.errors import DataError

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34


class LineRecords(Format):
    """A format whose records are lines that are not empty, without their line breaks (LF or CR LF).

    Args:
        quotes: whether quotes protect line breaks.
        header: whether the first line of each file names the columns, and is no record.
    """

    def __init__(self, quotes: bool = False, header: bool = False) -> None:
        # it names the index in the cache: the number changes with the meaning of the index
        self.name = f"lines 2 quotes={quotes} header={header}"
        self._quotes = quotes
        self._header = header

    def scan(self, file: File) -> np.ndarray:
        """Finds the lines of a file; see `Format.scan`."""
        ends, returns, quoted, last = [], [], 0, 0
        for begin, window in file.windows():
            text = np.frombuffer(window, np.uint8)
            breaks = text == _NEWLINE
            if self._quotes:
                # a line break after an odd number of quotes is inside of them; an escaped quote is
                # two
                before = quoted + np.cumsum(text == _QUOTE)
                breaks &= before % 2 == 0
                quoted = int(before[-1])
            found = np.flatnonzero(breaks)
            ends.append(found + begin)
            # CR may be the last byte of the window before
            returns.append(np.where(found > 0, text[found - 1], last) == _RETURN)
            last = text[-1]
        breaks_at = np.concatenate([*ends, [file.size]]).astype(np.int64)
        starts = np.concatenate([[0], breaks_at[:-1] + 1])
        stops = breaks_at - np.concatenate([*returns, [False]])
        # the last line may have no line break: the end of the file is one
        rows = np.stack([starts, stops - starts, np.zeros_like(starts)], axis=1)[
            int(self._header) :
        ]
        return rows[rows[:, 1] > 0]


def check_columns(files: Sequence[File]) -> list[str]:
    """Returns the columns, which the first lines of all CSV files must name alike.

    Raises:
        DataError: the columns differ, or a file is no text.
    """
    headers = [(file.name, _header_of(file)) for file in files if file.size]
    for name, header in headers:
        if header != headers[0][1]:
            raise DataError(
                f"The columns of CSV files must be the same and in the same order. {headers[0][0]}"
                f" has {headers[0][1]}, {name} has {header}."
            )
    return headers[0][1] if headers else []


def _header_of(file: File) -> list[str]:
    _, window = next(file.windows(1 << 20), (0, b""))
    try:
        # the window may end inside of a character
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(window)
        return next(csv.reader(io.StringIO(text, newline="")), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{file.name} is no CSV file: its first line must be UTF-8 text that names the columns"
            f" ({error})."
        ) from error


def csv_rows(
    columns: Sequence[str], numbers: Sequence[bool]
) -> Callable[[bytes], dict[str, np.float32 | str]]:
    """Returns a function that turns a line into values by column.

    Numbers are float32 (an empty cell is NaN); other values are text.
    """

    def row(line: bytes) -> dict[str, np.float32 | str]:
        cells = next(csv.reader([line.decode("utf-8")]))
        if len(cells) != len(columns):
            raise ValueError(f"{len(cells)} cells in place of {len(columns)}")
        return {
            name: _number(cell) if number else cell
            for name, number, cell in zip(columns, numbers, cells, strict=True)
        }

    return row


def are_numbers(lines: Sequence[bytes], columns: Sequence[str]) -> list[bool]:
    """Returns for each column whether its cells are numbers or empty, and at least one is a number.

    Lines with another number of cells don't count.
    """
    read = csv.reader([line.decode("utf-8", errors="replace") for line in lines])
    cells = [row for row in read if len(row) == len(columns)]
    return [_all_numbers([row[k] for row in cells]) for k in range(len(columns))]


def _all_numbers(cells: Sequence[str]) -> bool:
    try:
        values = [float(cell) for cell in cells if cell.strip()]
    except ValueError:
        return False
    return bool(values)


def _number(cell: str) -> np.float32:
    return np.float32(cell) if cell.strip() else np.float32("nan")
