"""Planned data sets as `fit` takes them: each worker's own records.

Their order does not depend on the number of workers. Keras knows such a data set as a `PyDataset`.
With TensorFlow its batches come as a `tf.data` pipeline, with JAX and torch one by one.
"""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from syrtos.comm import world
from syrtos.comm.communicator import Array
from syrtos.comm.world import Session
from syrtos.data.loader import Chunk, Loader, Position, RecordShare
from syrtos.data.plan import Plan
from syrtos.data.proof import SampleLedger, next_generation
from syrtos.errors import DataError
from syrtos.keras import backend


class PlannedDataset(keras.utils.PyDataset):
    """A data set for `fit`, `evaluate` and `predict`.

    Attributes:
        position: how far the last training has come.
        name: of this data set in the script, the same in each of its runs.
        trainings: how many models have begun to train on it.
    """

    def __init__(self, loader: Loader) -> None:
        """Raises DataError where there are no records."""
        super().__init__()
        if not len(loader.source):
            raise DataError("The data set is empty: none of its files has a record.")
        self.loader = loader
        self.position = Position()
        self.trainings = 0
        kind, names = loader.name, world.part(_Training).names
        self.name = f"{kind}-{names[kind]}"
        names[kind] += 1

    def __repr__(self) -> str:
        return (
            f"<{len(self.loader.source):,} records in batches of {self.loader.batch}, {self.name}>"
        )

    def __len__(self) -> int:
        """Returns the number of global batches in an epoch of `fit`."""
        return self.plan(Position()).steps

    @property
    def num_batches(self) -> int:
        """Returns the number of batches in an epoch, for Keras.

        Where workers evaluate for themselves, all batches of the script count.
        """
        return self.loader.plan().steps if world.explicit() else len(self)

    def __getitem__(self, index: int) -> object:
        """Returns this worker's share of a batch."""
        plan = self.plan(Position(self.position.epoch))
        return self.loader.load(plan, range(index, index + 1), *ranks()).data

    def plan(self, position: Position) -> Plan:
        """Returns the plan of what is left of the epoch at ``position``."""
        return self.loader.plan(position, ranks()[1] if _per_worker() else 1)


def _per_worker() -> bool:
    return world.explicit() or world.current().options.batch == "per-worker"


class Stream:
    """The batches of one `fit`, `evaluate` or `predict`, whose iterators begin at ``position``.

    Attributes:
        dataset: the planned data set.
        position: how far training has come; the beginning where nothing is trained.
        number: how many models began to train on the data set before this one.
    """

    def __init__(self, dataset: PlannedDataset, standardized: Callable[[object], object]) -> None:
        """``standardized``: makes of a batch what the rest of Keras expects."""
        self.dataset = dataset
        self.position = Position()
        self.number = 0
        self._standardized = standardized
        self._drawn: collections.deque[RecordShare] = collections.deque()
        self._first = 0  # number of the first of them
        self._left_out: set[int] = set()
        self._samples: SampleLedger | None = None
        self._training = self._endless = False
        self._epoch = 0
        self._types: Sequence[npt.DTypeLike] = []
        self._flatten: Callable[[object], list[object]] = keras.tree.flatten
        self._session = world.current()
        options = self._session.options
        if options.run_dir:
            dataset.loader.policy.write_to(options.run_dir, ranks()[0])

    def shares(self) -> Iterator[tuple[int, object]]:
        """Yields this worker's shares in memory: the number of rows, and the rows.

        Where the worker has no row, it gets a record that does not count; a worker that is alone
        leaves such batches out.
        """
        one = self.example()
        empty = self._flatten(one)
        chunks = self.chunks([np.asarray(leaf).dtype for leaf in empty], self._flatten)
        reader = ThreadPoolExecutor(1, "syrtos-input")
        try:
            following = reader.submit(next, chunks, None)
            while (found := following.result()) is not None:
                following = reader.submit(next, chunks, None)
                splits, *leaves = found
                for first, last in itertools.pairwise(splits.tolist()):
                    if first == last and alone():
                        continue
                    rows = [leaf[first:last] for leaf in leaves] if last > first else empty
                    yield last - first, keras.tree.pack_sequence_as(one, rows)
        # An epoch may end before its data: what is being read is not waited for.
        finally:
            reader.shutdown(wait=False, cancel_futures=True)

    def example(self) -> object:
        """Returns a batch of one record, as Keras expects batches."""
        return self._standardized(self.dataset.loader.example())

    def chunks(
        self, types: Sequence[npt.DTypeLike], flatten: Callable[[object], list[object]]
    ) -> Iterator[list[Array]]:
        """Returns an iterator over several batches at a time: splits, flat leaves of ``types``."""
        self._types, self._flatten = types, flatten
        return self._generate()

    def _generate(self) -> Iterator[list[Array]]:
        """Yields several batches at a time: their splits, and their flat leaves.

        It runs in a thread of its own, a few batches ahead of training.
        """
        drawn = self._drawn = collections.deque()
        self._first, self._left_out = 0, set()
        samples, position, numbers = self._samples, self.position, itertools.count()
        while True:
            for chunk in self._load_chunks(position):
                for share, rows, number in zip(
                    chunk.shares, np.diff(chunk.splits), numbers, strict=False
                ):
                    if not rows and alone():
                        self.leave_out(number)
                    # Before any worker can have finished this step: a checkpoint of rank 0 must not
                    # be ahead of a ledger.
                    if samples:
                        samples.add(share)
                    drawn.append(share)
                leaves = self._flatten(self._standardized(chunk.data))
                yield [
                    chunk.splits,
                    *(_array(leaf, dtype) for leaf, dtype in zip(leaves, self._types, strict=True)),
                ]
            if not self._endless:
                return
            position = Position(position.epoch + 1)

    def _load_chunks(self, position: Position) -> Iterator[Chunk]:
        """Yields the rest of an epoch."""
        if self._training or not world.explicit():
            chunks = self.dataset.loader.chunks(self.dataset.plan(position), *ranks())
        # A script that distributes itself may evaluate on one worker alone: all of the data.
        else:
            chunks = self.dataset.loader.chunks(self.dataset.loader.plan(position))
        while True:
            # An error is kept, to be shown in place of TensorFlow's error about it.
            with world.remembering_errors():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    # -- training ----------------------------------------------------------------------------------

    def begin(
        self, position: Position | None, number: int | None, endless: bool, session: Session
    ) -> None:
        """Begins training on the data set.

        Args:
            position: where it goes on; None for a model that was not trained on this data set
                before.
            number: the number of the model, if it was trained before.
            endless: whether epochs follow one another: the next is read while this one ends.
            session: this worker's.
        """
        # What the model before has drawn and not trained on is not counted.
        training = self._session.part(_Training)
        if training.stream is not None:
            training.stream.close()
        training.stream = self
        self._training, self._endless = True, endless
        self.number = self.dataset.trainings if number is None else number
        self.dataset.trainings = max(self.dataset.trainings, self.number + 1)
        self._set_position(position or Position())
        session.ledger.say(input="planned")
        if self.position != Position() and session.world.rank == 0:
            place, records = self.position.place, len(self.dataset.loader.source)
            print(
                f"syrtos: training goes on in epoch {self.position.epoch + 1} of the data, at"
                f" record {place:,} of {records:,}",
                file=sys.stderr,
            )
        run_dir, (rank, size) = session.options.run_dir, ranks()
        if not run_dir or session.options.asynchronous:
            return
        name = f"{self.dataset.name}-{self.number}"
        everyone = self._session.comm
        generation = everyone.broadcast_object(
            next_generation(run_dir, name) if rank == 0 else None
        )
        self._samples = SampleLedger(run_dir, name, rank, size)
        self._samples.begin(self.dataset.plan(Position()), self.position, generation)

    def note_trained(self, steps: int) -> None:
        """Notes that ``steps`` more batches have made their update."""
        # Each worker had some batches, and none has had all: there is no position.
        if self._session.options.asynchronous:
            return
        for _ in range(steps):
            self._pass_left_out()
            self._pass()
        self._pass_left_out()
        if self._samples:
            self._samples.note_reached(self.position)

    def records(self, steps: int) -> list[tuple[int, str, int]]:
        """Returns the records of this worker's shares of the next batches to be trained.

        They are returned as far as they are drawn: see `note_trained`. Each is its index, its file,
        and its place in the file. Where each worker computes with whole batches, their records are
        returned.
        """
        # A copy: the thread that reads ahead adds to it.
        drawn = enumerate(self._drawn.copy(), self._first)
        shares = [share for number, share in drawn if number not in self._left_out][:steps]
        whole = backend.computes_global_batches()
        indices = [
            each
            for share in shares
            for each in (share.plan.share(share.step) if whole else share.indices)
        ]
        return [(int(each), *self.dataset.loader.source.place(int(each))) for each in indices]

    def leave_out(self, number: int) -> None:
        """Notes that no worker has a row of a batch, so that no step trains on it.

        ``number``: counted from the first batch that was drawn.
        """
        self._left_out.add(number)

    def _pass_left_out(self) -> None:
        while self._first in self._left_out:
            self._left_out.discard(self._first)
            self._pass()

    def _pass(self) -> None:
        if self._drawn:
            self._first += 1
            self._set_position(self._drawn.popleft().after)

    def end_epoch(self, session: Session, stopped: bool) -> None:
        """Ends an epoch, and checks how many records were left out.

        Raises:
            DataError: all workers together have left out too many records.
        """
        # Keras does not tell of a last call that had fewer batches than `steps_per_execution`.
        if not self._endless and not stopped:
            self._set_position(Position(self._epoch + 1))
        self._epoch = self.position.epoch
        policy, everyone = self.dataset.loader.policy, self._session.comm
        # A worker may be dead where each goes at its own pace: none is asked.
        if session.options.asynchronous:
            policy.check(len(policy.left_out_records))
        elif any(everyone.agree("bad records", float(len(policy.left_out_records)))):
            policy.check(
                len(set().union(*everyone.allgather_object(sorted(policy.left_out_records))))
            )

    def epoch_begins(self) -> int:
        """Begins an epoch, and returns the steps that are left of it."""
        self._epoch = self.position.epoch
        return self.dataset.plan(self.position).steps

    def mark(self) -> None:
        """Writes down how far training has come, as the model is saved now."""
        if self._samples:
            self._samples.note_reached(self.position, now=True)

    def close(self) -> None:
        """Ends training at the last step: what was drawn after it was not trained on."""
        if self._samples:
            self._samples.end(self.position)
            self._samples = None

    def _set_position(self, position: Position) -> None:
        self.position = self.dataset.position = position


class _Training:
    """The planned data sets of this process, counted by kind, and the stream trained on last."""

    def __init__(self, session: Session) -> None:
        self.names = collections.Counter[str]()
        self.stream: Stream | None = None


def _array(leaf: Any, dtype: npt.DTypeLike) -> Array:
    """Returns the leaf as an array of the type that the pipeline was told of.

    Raises:
        DataError: it is of another type, and the conversion would lose something.
    """
    array = leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf)
    if array.dtype == dtype or dtype == np.object_:
        return array
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise DataError(
            f"Records differ in type: the first gave {np.dtype(dtype).name}, a later one"
            f" {array.dtype.name}. Let `parse_fn` return the same for all, e.g."
            " numpy.float32(value)."
        )
    return array.astype(dtype)


def alone() -> bool:
    """Returns whether this is the only worker."""
    return world.current().world.size == 1


def ranks() -> tuple[int, int]:
    """Returns this worker's rank, and how many workers share the data.

    They are 0 and 1 where each worker trains at its own pace.
    """
    # Over servers all workers read all batches, and each batch is trained on by the one that asks
    # next.
    session = world.current()
    return (0, 1) if session.options.asynchronous else (session.world.rank, session.world.size)
