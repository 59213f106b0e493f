"""From a plan and a source to one worker's batches, read ahead of the step."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from syrtos.data.bad import Policy
from syrtos.data.plan import Indices, Plan, block_records
from syrtos.data.sources import BadRecord, Source, mapped

# Batches that are being read while a step runs; of remote files, whose pieces are asked for still earlier.
_AHEAD = 3
_FETCHED_AHEAD = 16
# What shuffling holds in memory unless told otherwise.
MEMORY = 256 << 20


@dataclasses.dataclass(frozen=True)
class Position:
    """How far training has come in a data set: ``place`` records of epoch ``epoch`` are done, by all workers together."""

    epoch: int = 0
    place: int = 0


@dataclasses.dataclass(frozen=True)
class Batch:
    """One worker's share of a global batch.

    Attributes:
        plan: of the epoch.
        step: which global batch.
        data: what ``parse`` made of the records.
        indices: the records, also those that were left out.
        left_out: how many were.
    """

    plan: Plan
    step: int
    data: Any
    indices: Indices
    left_out: int

    @property
    def after(self) -> Position:
        """Where training goes on after this batch."""
        place = self.plan.place(self.step + 1)
        return Position(self.plan.epoch, place) if place < self.plan.records else Position(self.plan.epoch + 1)


@dataclasses.dataclass
class Loader:
    """Reads a data set by a plan.

    Attributes:
        source: the records.
        parse: from what ``source.read`` gives to a batch: arrays whose first dimension are the records.
        batch: records in a batch of the script.
        seed: of the order; None keeps the records in theirs.
        policy: about bad records.
        memory: bytes of records that shuffling may hold, in one process that reads all; less in each of several.
    """

    source: Source
    parse: Callable[[Any], Any]
    batch: int
    seed: int | None
    policy: Policy
    memory: int = MEMORY

    def plan(self, position: Position = Position(), workers: int = 1) -> Plan:
        """The rest of an epoch. ``workers``: how many batches of the script make up a global batch."""
        source = self.source
        block = block_records(len(source), source.nbytes, self.memory)
        return Plan(
            self._fingerprint, len(source), self.batch * workers, position.epoch, self.seed, block, position.place
        )

    @functools.cached_property
    def _fingerprint(self) -> str:
        return self.source.fingerprint

    def load(self, plan: Plan, step: int, rank: int = 0, size: int = 1) -> Batch:
        """A worker's share of a global batch.

        Raises:
            BadRecord: a record can't be read, and must not be left out.
            DataError: too many can't.
        """
        indices = plan.share(step, rank, size)
        known = self.policy.known
        wanted = indices[[index not in known for index in indices.tolist()]] if known else indices
        data, used = self._read(wanted)
        return Batch(plan, step, data, indices, len(indices) - len(used))

    def batches(self, plan: Plan, rank: int = 0, size: int = 1) -> Iterator[Batch]:
        """A worker's shares of all global batches of the plan, read ahead."""
        waiting: collections.deque[concurrent.futures.Future[Batch]] = collections.deque()
        pool = _pool()
        try:
            for step in range(plan.steps):
                self._fetch(plan, step, rank, size)
                waiting.append(pool.submit(self.load, plan, step, rank, size))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _fetch(self, plan: Plan, step: int, rank: int, size: int) -> None:
        """Lets the source begin to fetch a batch of the near future; at the beginning all until then."""
        if type(self.source).prefetch is Source.prefetch:
            return
        far = step + _FETCHED_AHEAD
        for each in range(0 if step == 0 else far, min(far + 1, plan.steps)):
            _fetchers().submit(self.source.prefetch, plan.share(each, rank, size))

    def nothing(self) -> Any:
        """A batch without rows."""
        return mapped(lambda leaf: leaf[:0], self._one)

    @functools.cached_property
    def _one(self) -> Any:
        """A batch of the first record that can be read."""
        for index in range(len(self.source)):
            data, used = self._read(np.asarray([index], np.int64), or_nothing=False)
            if len(used):
                return data
        raise AssertionError("unreachable: the budget is below the number of records")

    def _read(self, indices: Indices, or_nothing: bool = True) -> tuple[Any, Indices]:
        """The batch, and which records are in it."""
        if not len(indices):
            return (self.nothing() if or_nothing else None), indices
        try:
            return self.parse(self.source.read(indices)), indices
        except Exception as error:
            good = self._sorted_out(indices, error)
        if not len(good):
            return (self.nothing() if or_nothing else None), good
        return self.parse(self.source.read(good)), good

    def _sorted_out(self, indices: Indices, error: Exception) -> Indices:
        """The good ones among records of which not all are; raises ``error`` if each alone is."""
        good = []
        for index in indices.tolist():
            one, raw = np.asarray([index], np.int64), b""
            try:
                raw = self.source.read(one)
                self.parse(raw)
                good.append(index)
            except BadRecord as bad:
                self.policy.leave_out(bad)
            except Exception as reason:
                self.policy.leave_out(BadRecord(index, *self.source.place(index), _said(reason), _bytes_of(raw)))
        if len(good) == len(indices):
            raise error
        return np.asarray(good, np.int64)


def _said(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def _bytes_of(raw: Any) -> bytes:
    """The bytes of a record that was read alone, if it is of bytes."""
    first = raw[0] if isinstance(raw, list) and raw else raw
    first = first[0] if isinstance(first, tuple) else first
    return first if isinstance(first, bytes) else b""


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(2, "syrtos-read")


@functools.cache
def _fetchers() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(4, "syrtos-prefetch")
