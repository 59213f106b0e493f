"""Reading of one worker's batches from a source, in the order of a plan."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from syrtos.data.bad_records import BadRecords
from syrtos.data.plan import Indices, Plan, block_records
from syrtos.data.sources import BadRecord, Source, map_arrays
from syrtos.errors import DataError, SyrtosError
from syrtos.own_packages import FOLDERS

# Batches whose bytes are asked for before they are needed, where that takes long.
_FETCHED_AHEAD = 32
# Batches that are read together: each call costs time, and the first batch should come soon.
_CHUNK_BYTES, _CHUNK_BATCHES = 1 << 20, 16
# Bytes that shuffling holds in memory by default.
MEMORY = 256 << 20


@dataclasses.dataclass(frozen=True)
class Position:
    """The place that training has reached in a data set.

    All workers together have done ``place`` records of epoch ``epoch``.
    """

    epoch: int = 0
    place: int = 0


@dataclasses.dataclass(frozen=True)
class RecordShare:
    """The records of one worker in a global batch.

    Attributes:
        plan: the plan of the epoch.
        step: the number of the global batch in the plan, from 0.
        indices: the records, also those that were left out.
        left_out: the number of records that were left out.
    """

    plan: Plan
    step: int
    indices: Indices
    left_out: int

    @property
    def after(self) -> Position:
        """The position after this batch."""
        # the end of an epoch is the beginning of the next: both are saved as the same position
        place = self.plan.place(self.step + 1)
        return (
            Position(self.plan.epoch, place)
            if place < self.plan.records
            else Position(self.plan.epoch + 1)
        )


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Several shares of one worker, which were read and parsed together.

    Attributes:
        shares: a share of each global batch.
        data: the parsed records of all shares.
        splits: the first row of ``data`` for each share, and the number of all rows; one entry more
            than there are shares.
    """

    shares: list[RecordShare]
    data: Any
    splits: Indices


@dataclasses.dataclass
class Loader:
    """Reads a data set by a plan.

    Attributes:
        source: the records.
        parse: turns the result of ``source.read`` into a batch: arrays whose first dimension counts
            the records.
        batch: the number of records in a batch of the script.
        seed: the seed of the order; None keeps the records in their order.
        policy: decides about bad records.
        memory: the most bytes of records that shuffling holds, in one process that reads all; less
            in each of several.
    """

    source: Source
    parse: Callable[[Any], object]
    batch: int
    seed: int | None
    policy: BadRecords
    memory: int = MEMORY

    def plan(self, position: Position = Position(), workers: int = 1) -> Plan:
        """Returns the plan of what is left of an epoch.

        A global batch consists of ``workers`` batches of the script.
        """
        source = self.source
        block = block_records(len(source), source.nbytes, self.memory)
        return Plan(
            self._fingerprint,
            len(source),
            self.batch * workers,
            position.epoch,
            self.seed,
            block,
            position.place,
        )

    @property
    def name(self) -> str:
        """A name that is unique to this order of records."""
        block = self.plan().block
        return "-".join([self._fingerprint, str(self.seed), *([str(block)] if block > 1 else [])])

    @functools.cached_property
    def _fingerprint(self) -> str:
        return self.source.fingerprint

    def load(self, plan: Plan, steps: range, rank: int = 0, size: int = 1) -> Chunk:
        """Reads and parses a worker's shares of the global batches in ``steps``.

        Raises:
            BadRecord: a record can't be read, and must not be left out.
            DataError: too many records can't be read.
        """
        shares = [self._share(plan, step, rank, size) for step in steps]
        indices = np.concatenate(shares)
        # those of the epochs before are not read again
        known = self.policy.left_out_records
        wanted = indices[[index not in known for index in indices.tolist()]] if known else indices
        data, used = self._read(wanted)
        counts = [
            len(share) if len(used) == len(indices) else int(np.isin(share, used).sum())
            for share in shares
        ]
        facts = zip(steps, shares, counts, strict=True)
        told = [RecordShare(plan, step, share, len(share) - count) for step, share, count in facts]
        return Chunk(told, data, np.cumsum([0, *counts], dtype=np.int64))

    def chunks(self, plan: Plan, rank: int = 0, size: int = 1) -> Iterator[Chunk]:
        """Yields a worker's shares of all global batches of the plan, in order."""
        together = self._batches_at_once(plan, size)
        for first in range(0, plan.steps, together):
            steps = range(first, min(first + together, plan.steps))
            self._fetch(plan, steps, rank, size)
            yield self.load(plan, steps, rank, size)

    def _batches_at_once(self, plan: Plan, size: int) -> int:
        """Returns the number of batches to read at a time: more than one if they are small."""
        share = plan.batch / size * self.source.nbytes / len(self.source)
        return int(min(max(_CHUNK_BYTES // max(share, 1), 1), _CHUNK_BATCHES))

    def _fetch(self, plan: Plan, steps: range, rank: int, size: int) -> None:
        """Lets the source begin to fetch batches that are soon needed.

        At the beginning of the plan these include the first batches.
        """
        if type(self.source).prefetch is Source.prefetch:  # it has none of its own
            return
        far = range(
            steps.start + _FETCHED_AHEAD if steps.start else 0,
            min(steps.stop + _FETCHED_AHEAD, plan.steps),
        )
        for each in far:
            _fetchers().submit(self.source.prefetch, self._share(plan, each, rank, size))

    def _share(self, plan: Plan, step: int, rank: int, size: int) -> Indices:
        """Returns the indices of a worker's records in a global batch.

        The plan assigns them. If workers see different files, each record goes to a worker that can
        read it.
        """
        places = plan.places(step)
        readers = (
            self.source.readers(plan.records_at(places), places)
            if size > 1 and self._has_readers
            else None
        )
        if readers is not None:
            return plan.records_at(places)[readers == rank]
        return plan.share(step, rank, size)

    # asked once, about no records: whether workers see different files does not change
    @functools.cached_property
    def _has_readers(self) -> bool:
        nothing = np.zeros(0, np.int64)
        return self.source.readers(nothing, nothing) is not None

    def nothing(self) -> Any:
        """Returns a batch without rows."""
        return map_arrays(lambda leaf: leaf[:0], self.example())

    def example(self) -> Any:
        """Returns a batch of the first record that can be read."""
        return self._example

    @functools.cached_property
    def _example(self) -> Any:
        for index in range(len(self.source)):
            data, used = self._read(np.asarray([index], np.int64), or_nothing=False)
            if len(used):
                return data
        raise DataError("No record of the data set can be read: " + str(self.policy.last))

    def _read(self, indices: Indices, or_nothing: bool = True) -> tuple[object, Indices]:
        """Returns the parsed batch, and the indices of the records that are in it."""
        if not len(indices):
            return (self.nothing() if or_nothing else None), indices
        try:
            return self.parse(self.source.read(indices)), indices
        except Exception as error:
            if isinstance(error, SyrtosError) and not isinstance(error, BadRecord):
                raise  # it says nothing about the records
            # one bad record fails the whole batch: the others are found by reading each alone
            good = self._sort_out(indices, error)
        if not len(good):
            return (self.nothing() if or_nothing else None), good
        return self.parse(self.source.read(good)), good

    def _sort_out(self, indices: Indices, error: Exception) -> Indices:
        """Returns the indices of the good records after reading all of them failed.

        It raises ``error`` if each record alone is good.
        """
        good = []
        for index in indices.tolist():
            one, raw = np.asarray([index], np.int64), b""
            try:
                raw = self.source.read(one)
            except BadRecord as bad:
                self.policy.leave_out(bad)
                continue
            try:
                self.parse(raw)
                good.append(index)
            except Exception as reason:
                bad = BadRecord(
                    index, *self.source.place(index), _error_text(reason), _bytes_of(raw)
                )
                bad.__cause__ = reason
                self.policy.leave_out(bad)
        if len(good) == len(indices):
            raise error  # of the batch as a whole, e.g. records of unequal shapes
        return np.asarray(good, np.int64)


def _error_text(error: Exception) -> str:
    """Returns the error as text, with the last line of the script's own code that it passed."""
    # TensorFlow begins with the name of a node of its graph
    text = [
        line
        for line in str(error).strip().splitlines()
        if line and not line.startswith("{{function_node")
    ] or [""]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not _of_a_library(frame.filename)
    ]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text[0][:300]}{where}"


def _of_a_library(filename: str) -> bool:
    return (
        filename.startswith(("<", sysconfig.get_path("stdlib"), *FOLDERS))
        or "site-packages" in filename
    )


def _bytes_of(raw: object) -> bytes:
    """Returns the bytes of a record that was read alone, or none if it is not of bytes."""
    first = raw[0] if isinstance(raw, list) and raw else raw
    first = first[0] if isinstance(first, tuple) else first
    return first if isinstance(first, bytes) else b""


@functools.cache
def _fetchers() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(4, "syrtos-prefetch")
