"""The order of records, and each worker's share of it, as pure functions of a few numbers.

The order is equal for every number of workers.

An epoch is a sequence of all records, each once; a global batch is the next records of it. Without
shuffling the sequence is the order of the records. Otherwise it is made like this: records are cut
into blocks of neighbours, the blocks are permuted, and so are the records inside each block. The
result is cut into `STREAMS` long pieces, and the sequence takes one record of each in turn. So

- a batch mixes records of as many blocks as it has records;
- a process that reads it all holds one block of each stream at a time, which bounds the memory (see
  `block_records`);
- workers take the streams in turn, so each reads its own blocks and nothing else, however many
  workers there are;
- any place is found without going through the places before it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib

import numpy as np
import numpy.typing as npt

from syrtos.comm.communicator import share_of
from syrtos.errors import ConfigurationError

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

# Divisible by most numbers of workers; with others their shares of a batch differ by one now and
# then.
STREAMS = 240
_ROUNDS = 6
_TOGETHER = 1 << 15  # places whose records are computed at once


@dataclasses.dataclass(frozen=True)
class Plan:
    """The order of one epoch of a data set, cut into global batches.

    Attributes:
        fingerprint: identifies the data set; see `Source.fingerprint`.
        records: the number of records.
        batch: records in a global batch, of all workers together; the last batch may have fewer.
        epoch: the number of the epoch, from 0; each epoch has another order if it is shuffled.
        seed: the seed of the order; None keeps the records as they are.
        block: the number of neighbours that are read together when shuffled.
        first: the place of the sequence at which the first global batch begins: an interrupted
            epoch goes on there.
    """

    fingerprint: str
    records: int
    batch: int
    epoch: int = 0
    seed: int | None = None
    block: int = 1
    first: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.block < 1 or self.records < 0:
            raise ConfigurationError(
                "A plan needs a batch and a block of at least one record. Received:"
                f" batch={self.batch}, block={self.block}, records={self.records}."
            )

    @property
    def steps(self) -> int:
        """The number of global batches in the rest of the epoch."""
        return -(-(self.records - self.first) // self.batch)

    def places(self, step: int) -> Indices:
        """Returns the places of the sequence that global batch ``step`` takes.

        The shape is (batch,); the last batch may have fewer places.
        """
        return np.arange(self.place(step), self.place(step + 1), dtype=np.int64)

    def place(self, step: int) -> int:
        """Returns the place of the sequence at which global batch ``step`` begins.

        The place after the last batch is the end of the epoch.
        """
        return min(self.first + step * self.batch, self.records)

    def share(self, step: int, rank: int = 0, size: int = 1) -> Indices:
        """Returns the indices of the records that ``rank`` reads for a global batch.

        ``rank`` is one of ``size`` workers, and may read none.

        They are the rank's contiguous rows of the batch, so that the batch has the rows of one
        process in their order. Only records that are shuffled by blocks are those in the streams
        of that worker, so that it reads no blocks of others; with more workers than streams, some
        would have none. Either way the shares of all ranks make up the batch, for every ``size``.
        """
        places = self.places(step)
        if self.seed is None or self.block == 1 or size > STREAMS:
            start, stop = share_of(len(places), rank, size)
            return self._batch(step)[start:stop]
        return self._batch(step)[places % STREAMS % size == rank]

    def _batch(self, step: int) -> Indices:
        """Returns the record indices of a global batch."""
        # many batches are computed at once, which is much cheaper
        together = max(1, _TOGETHER // self.batch)
        first, place = step - step % together, step % together * self.batch
        return _sequence(self, self.place(first), self.place(first + together))[
            place : place + self.batch
        ]

    def records_at(self, places: Indices) -> Indices:
        """Returns record indices at places of the sequence, in the same shape."""
        if self.seed is None or not len(places):
            return places
        key = _number(self.fingerprint, self.seed, self.epoch)
        # streams are contiguous, and the first `longer` of them have one record more
        shortest, longer = divmod(self.records, STREAMS)
        stream, row = places % STREAMS, places // STREAMS
        inside = stream * shortest + np.minimum(stream, longer) + row
        return self._shuffle(inside, key)

    def _shuffle(self, places: Indices, key: int) -> Indices:
        """Returns record indices at places after permuting blocks, and records inside each block.

        All but the last block are full.
        """
        if self.block == 1:
            return permute(places, self.records, key)
        blocks = -(-self.records // self.block)
        last = self.records - (blocks - 1) * self.block
        # the last block may be shorter, and permuting moves it away from the end
        before = _place_of_last(blocks, key) * self.block
        shifted = np.where(
            places >= before + last, places + (self.block - last), places
        )  # as if the last were full
        block = permute(shifted // self.block, blocks, key)
        length = np.where(block == blocks - 1, last, self.block)
        return block * self.block + permute(shifted % self.block, length, key ^ _mix(block))


@functools.lru_cache(maxsize=8)
def _sequence(plan: Plan, start: int, stop: int) -> Indices:
    return plan.records_at(np.arange(start, stop, dtype=np.int64))


@functools.lru_cache(maxsize=8)
def _place_of_last(blocks: int, key: int) -> int:
    """Returns the place of the last block, which may be shorter, after permuting."""
    return int(np.argmax(permute(np.arange(blocks), blocks, key)))


def block_records(records: int, nbytes: int, memory: int) -> int:
    """Returns the largest block with which a process holds at most ``memory`` bytes.

    The process is one that reads the whole batch.

    Args:
        records: the number of records.
        nbytes: their bytes together.
        memory: bytes of records; data sets that fit are shuffled record by record.
    """
    if nbytes <= memory or not records:
        return 1
    return max(1, int(memory / STREAMS / (nbytes / records)))


def permute(values: npt.ArrayLike, count: npt.ArrayLike, key: npt.ArrayLike) -> Indices:
    """Returns the entries at ``values`` of a permutation of ``0 .. count - 1``, chosen by ``key``.

    Args:
        values: int64, each below its ``count``; any shape.
        count: int, or an array of the same shape.
        key: int, or an array of the same shape.
    """
    values, count, key = np.asarray(values, np.int64), np.asarray(count, np.int64), _mix(key)
    bits = np.frexp(np.maximum(count - 1, 1).astype(np.float64))[1].astype(
        np.uint64
    )  # of the largest value
    result = _round_trip(values, bits, key)
    # the rounds permute the numbers of as many bits, of which some may be too large: such a value
    # is sent through again until it comes back into the range (cycle walking: Black and Rogaway,
    # Ciphers with Arbitrary Finite Domains)
    left = np.nonzero(result >= count)
    while len(left[0]):
        result[left] = _round_trip(result[left], *(x[left] if x.ndim else x for x in (bits, key)))
        left = tuple(axis[result[left] >= (count[left] if count.ndim else count)] for axis in left)
    return result


def _round_trip(values: Indices, bits: Words, key: Words) -> Indices:
    x, mask = values.astype(np.uint64), (np.uint64(1) << bits) - np.uint64(1)
    half = (bits + np.uint64(1)) >> np.uint64(1)
    # adding, multiplying by an odd number and folding the upper half can each be undone on numbers
    # of so many bits
    for _ in range(_ROUNDS):
        with np.errstate(over="ignore"):
            key = key * np.uint64(6364136223846793005) + np.uint64(
                1442695040888963407
            )  # Knuth's MMIX
            x = ((x + (key >> np.uint64(40))) * ((key >> np.uint64(17)) | np.uint64(1))) & mask
        x = x ^ (x >> half)
    return x.astype(np.int64)


def _mix(x: npt.ArrayLike) -> Words:
    """Returns 64 bits that look unrelated to ``x``: SplitMix64 (Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        x = np.asarray(x).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _number(*parts: object) -> int:
    # `hash` of a text differs between processes
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little")


def sum_of_records(indices: Indices) -> int:
    """Returns a number that tells multisets of records apart.

    The number of two multisets together is the sum of their numbers modulo 2⁶⁴.
    """
    return int(np.add.reduce(_mix(indices), dtype=np.uint64))
