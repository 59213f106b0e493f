"""Records that can't be read are left out up to a budget, and listed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, get_args

from syrtos.data.sources import BadRecord
from syrtos.errors import ConfigurationError, DataError

OnBadRecord = Literal["fail", "skip", "quarantine"]


class LeftOut(TypedDict):
    """A line of the list of records that were left out.

    Attributes:
        index: the index of the record.
        file: the file in which it lies.
        offset: the byte, or row, of the file at which it begins.
        reason: the reason why it can't be read.
        kept: the copy of its bytes, below the folder of the list.
    """

    index: int
    file: str
    offset: int
    reason: str
    kept: NotRequired[str]


@dataclasses.dataclass
class BadRecords:
    """Decides about bad records of one data set on one worker, and remembers them.

    The plan does not change: a batch with a bad record has one sample fewer.

    Attributes:
        on_bad_record: ``"fail"`` raises; ``"skip"`` leaves the record out and lists it;
            ``"quarantine"`` also keeps its bytes.
        budget: the most records that may be left out: a number, or below 1 a fraction of all.
        records: the number of records.
    """

    on_bad_record: OnBadRecord
    budget: float
    records: int

    def __post_init__(self) -> None:
        if self.on_bad_record not in get_args(OnBadRecord):
            raise ConfigurationError(
                f"`on_bad_record` must be one of {', '.join(get_args(OnBadRecord))}. Received:"
                f" {self.on_bad_record!r}."
            )
        if self.budget < 0:
            raise ConfigurationError(f"`bad_budget` must be 0 or more. Received: {self.budget}.")
        self._found: dict[int, BadRecord] = {}
        self._folder: Path | None = None
        self._rank = 0
        self._lock = threading.Lock()

    @property
    def left_out_records(self) -> frozenset[int]:
        """Indices of the records that were left out."""
        return frozenset(self._found)

    @property
    def last(self) -> BadRecord | None:
        """The bad record that was found last."""
        return next(reversed(self._found.values()), None)

    @property
    def most_left_out(self) -> int:
        """The most records that may be left out, by all workers together."""
        return int(self.budget * self.records) if self.budget < 1 else int(self.budget)

    def write_to(self, run_dir: str, rank: int) -> None:
        """Begins to list bad records in files under ``run_dir/data``."""
        if self._folder == Path(run_dir) / "data":
            return
        self._folder, self._rank = Path(run_dir) / "data", rank
        with contextlib.suppress(OSError):  # as in `_write`
            _end_line(bad_list(self._folder, rank))
        # those that were found before there was a folder
        for bad in self._found.values():
            self._write(bad)

    def leave_out(self, bad: BadRecord) -> None:
        """Notes a bad record, or raises.

        Raises:
            BadRecord: bad records are not to be left out.
            DataError: there are more bad records than the budget allows.
        """
        if self.on_bad_record == "fail":
            raise bad
        with self._lock:
            if bad.index in self._found:
                return
            self._found[bad.index] = bad
            self._write(bad)
        self.check(len(self._found))

    def check(self, together: int) -> None:
        """Raises DataError if ``together`` records left out are more than the budget allows."""
        if together > self.most_left_out:
            raise DataError(
                f"{together} records are bad, and at most {self.most_left_out} of {self.records}"
                f" may be left out (`bad_budget={self.budget:g}`). "
                + (f"The last: {self.last}. " if self.last else "")
                + "Repair the files or `parse_fn`, or allow more if that many samples can be"
                " missing."
            )

    def _write(self, bad: BadRecord) -> None:
        if self._folder is None:
            return
        try:
            self._write_into(self._folder, bad)
        except OSError as error:
            # a full disk, for example, is no reason to end the training
            self._folder = None
            print(f"syrtos: records that are left out are listed no more: {error}", file=sys.stderr)

    def _write_into(self, folder: Path, bad: BadRecord) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        facts: LeftOut = {
            "index": bad.index,
            "file": bad.file,
            "offset": bad.offset,
            "reason": bad.reason,
        }
        if self.on_bad_record == "quarantine" and bad.raw:
            kept = folder / "quarantine" / f"record-{bad.index}-of-{Path(bad.file).name}"
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(bad.raw)
            facts["kept"] = str(kept.relative_to(folder))
        with bad_list(folder, self._rank).open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def bad_list(folder: Path, rank: int) -> Path:
    """Returns the file in which ``rank`` lists the records that it has left out."""
    return folder / f"bad-rank-{rank}.jsonl"


def _end_line(path: Path) -> None:
    """Ends a last line that has no end."""
    # a worker that was killed may have left half a line, and the next one would be added to it
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")


def left_out(*folders: Path) -> list[LeftOut]:
    """Returns the records that a run has left out, each once, ordered by file and index.

    Args:
        folders: the folder of each generation of workers of the run.
    """
    # by record: after a restart, another worker may have met the same one
    found: dict[tuple[str, int], LeftOut] = {}
    for path in (path for folder in folders for path in (folder / "data").glob("bad-rank-*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            # of a worker that was killed while it wrote, or damaged
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                facts: LeftOut = json.loads(line)
                found[str(facts["file"]), int(facts["index"])] = facts
    return [found[key] for key in sorted(found)]
