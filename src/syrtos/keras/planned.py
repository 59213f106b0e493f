"""What `fit` takes of a planned data set: each worker's own records, in an order that no number of workers changes.

Keras knows it as a `PyDataset`. With TensorFlow its batches come as a `tf.data` pipeline; with other backends as they are.
"""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import py_dataset_adapter

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.data.loader import Chunk, Loader, Position, Share
from syrtos.data.plan import Plan
from syrtos.data.proof import SampleLedger, next_generation
from syrtos.errors import DataError
from syrtos.keras import backend

# Batches that are ready before a step asks for them.
_READ_AHEAD = 3
_names = collections.Counter[str]()


class PlannedDataset(keras.utils.PyDataset):
    """A data set for `fit`, `evaluate` and `predict`.

    Attributes:
        position: how far the last training has come.
        name: of this data set in the script, the same in each of its runs.
        trainings: models that began to train on it.
    """

    def __init__(self, loader: Loader) -> None:
        """Raises DataError where there are no records."""
        super().__init__()
        if not len(loader.source):
            raise DataError("The data set is empty: none of its files has a record.")
        self.loader = loader
        self.position = Position()
        self.trainings = 0
        kind = loader.name
        self.name = f"{kind}-{_names[kind]}"
        _names[kind] += 1
        prepare()

    def __repr__(self) -> str:
        return f"<{len(self.loader.source):,} records in batches of {self.loader.batch}, {self.name}>"

    def __len__(self) -> int:
        """Global batches in an epoch of `fit`."""
        return self.plan(Position()).steps

    @property
    def num_batches(self) -> int:
        """The same, for Keras; all batches of the script where workers evaluate for themselves."""
        return self.loader.plan().steps if world.explicit() else len(self)

    def __getitem__(self, index: int) -> Any:
        """This worker's share of a batch."""
        plan = self.plan(Position(self.position.epoch))
        return self.loader.load(plan, range(index, index + 1), *ranks()).data

    def on_epoch_end(self) -> None:
        """Where nothing counts the steps, the next epoch begins."""
        if keras.backend.backend() != "tensorflow":
            self.position = Position(self.position.epoch + 1)

    def plan(self, position: Position) -> Plan:
        """What is left of the epoch at ``position``."""
        return self.loader.plan(position, ranks()[1] if _per_worker() else 1)


def _per_worker() -> bool:
    return world.explicit() or world.current().options.batch == "per-worker"


@functools.cache
def prepare() -> None:
    """Lets Keras take planned data sets, and find positions in files."""
    world.init()
    if keras.backend.backend() == "tensorflow":
        from syrtos.keras.tensorflow import keras3

        keras3.apply_all()
    else:
        replace_shuffle()


def replace_shuffle() -> None:
    """`fit` would shuffle the batches of a data set that has an order of its own."""
    original = py_dataset_adapter.PyDatasetAdapter.__init__

    def init(self: Any, x: Any, class_weight: Any = None, shuffle: bool = False) -> None:
        original(self, x, class_weight=class_weight, shuffle=shuffle and not isinstance(x, PlannedDataset))

    py_dataset_adapter.PyDatasetAdapter.__init__ = init


class Stream:
    """The batches of one `fit`, `evaluate` or `predict`, as a `tf.data` pipeline whose iterators begin at ``position``.

    Attributes:
        dataset: the planned data set.
        position: how far training has come; the beginning where nothing is trained.
        number: how many models began to train on the data set before this one.
    """

    def __init__(self, dataset: PlannedDataset, standardized: Callable[[Any], Any]) -> None:
        """``standardized`` makes of a batch what the rest of Keras expects."""
        self.dataset = dataset
        self.position = Position()
        self.number = 0
        self._standardized = standardized
        self._drawn: collections.deque[Share] = collections.deque()
        self._samples: SampleLedger | None = None
        self._training = self._endless = False
        self._epoch = 0
        self._types: list[Any] = []
        options = world.current().options
        if options.run_dir:
            dataset.loader.policy.write_to(options.run_dir, ranks()[0])

    def pipeline(self) -> Any:
        """A `tf.data.Dataset` of this worker's shares.

        One call of Python reads several small batches, which are taken apart by the pipeline: a call has its price.

        Raises:
            DataError: parsed records are not dense.
        """
        import tensorflow as tf

        from syrtos.keras.tensorflow import input as pipelines

        # A worker without rows computes with this record, which does not count.
        one = self._standardized(self.dataset.loader.example())
        specs = tf.nest.map_structure(_spec, one)
        flat = tf.nest.flatten(specs)
        example = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(one)]
        self._types = [spec.dtype.as_numpy_dtype for spec in flat]
        started: dict[int, Iterator[list[Any]]] = {}

        def start() -> np.int64:
            number = len(started)
            started[number] = self._generate()
            return np.int64(number)

        def chunk(number: Any) -> list[Any]:
            nothing = [
                np.zeros(1, np.int64),
                *(np.zeros([n or 0 for n in spec.shape], spec.dtype.as_numpy_dtype) for spec in flat),
            ]
            return next(started[int(number)], nothing)

        def chunks(number: tf.Tensor) -> Any:
            types = [tf.int64, *(spec.dtype for spec in flat)]
            endless = tf.data.Dataset.counter().map(lambda _: tf.numpy_function(chunk, [number], types))
            return endless.take_while(lambda splits, *_: tf.size(splits) > 1).prefetch(1)

        def batches(splits: tf.Tensor, *leaves: tf.Tensor) -> Any:
            splits = tf.ensure_shape(splits, [None])
            shaped = [tf.ensure_shape(leaf, spec.shape) for leaf, spec in zip(leaves, flat, strict=True)]

            def batch(number: tf.Tensor) -> pipelines.Share:
                first, last = splits[number], splits[number + 1]
                empty = tf.equal(first, last)
                rows = [
                    tf.cond(empty, lambda one=one: one, lambda leaf=leaf: leaf[first:last])
                    for leaf, one in zip(shaped, example, strict=True)
                ]
                return pipelines.Share(last - first, tf.nest.pack_sequence_as(specs, rows))

            return tf.data.Dataset.range(tf.size(splits, tf.int64) - 1).map(batch)

        iterators = tf.data.Dataset.from_tensors(0).map(lambda _: tf.numpy_function(start, [], tf.int64))
        shares = iterators.flat_map(chunks).flat_map(batches).prefetch(_READ_AHEAD)
        return pipelines.plain(shares) if ranks()[1] > 1 else shares.map(lambda share: share.data)

    def _generate(self) -> Iterator[list[Any]]:
        """Runs in a thread of the pipeline, a few batches ahead of training: splits, and the flat leaves of several batches."""
        import tensorflow as tf

        drawn = self._drawn = collections.deque()
        samples, position = self._samples, self.position
        while True:
            for chunk in self._loaded(position):
                for share in chunk.shares:
                    # Before any worker can have finished this step: a checkpoint of rank 0 must not be ahead of a ledger.
                    if samples:
                        samples.add(share)
                    drawn.append(share)
                leaves = tf.nest.flatten(self._standardized(chunk.data))
                yield [chunk.splits, *(_array(leaf, dtype) for leaf, dtype in zip(leaves, self._types, strict=True))]
            if not self._endless:
                return
            position = Position(position.epoch + 1)

    def _loaded(self, position: Position) -> Iterator[Chunk]:
        """The rest of an epoch; an error is kept, so that it can be shown in place of TensorFlow's error about it."""
        if self._training or not world.explicit():
            chunks = self.dataset.loader.chunks(self.dataset.plan(position), *ranks())
        else:  # such a script may evaluate on one worker alone: all of it
            chunks = self.dataset.loader.chunks(self.dataset.loader.plan(position))
        while True:
            with world.remembering_errors():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    # -- training -----------------------------------------------------------------------------------

    def begin(self, position: Position | None, number: int | None, endless: bool, session: Session) -> None:
        """Training begins.

        Args:
            position: where it goes on; None for a model that was not trained on this data set before.
            number: of the model, if it was.
            endless: epochs follow one another: the next is read while this one ends.
            session: this worker's.
        """
        global _active
        if _active is not None:
            _active.close()
        _active = self
        self._training, self._endless = True, endless
        self.number = self.dataset.trainings if number is None else number
        self.dataset.trainings = max(self.dataset.trainings, self.number + 1)
        self._reached(position or Position())
        session.ledger.say(input="planned")
        if self.position != Position() and session.world.rank == 0:
            place, records = self.position.place, len(self.dataset.loader.source)
            print(
                f"syrtos: training goes on in epoch {self.position.epoch + 1} of the data, at record {place:,} of {records:,}",
                file=sys.stderr,
            )
        run_dir, (rank, size) = session.options.run_dir, ranks()
        if not run_dir or session.options.own_pace:
            return
        name = f"{self.dataset.name}-{self.number}"
        everyone = world.current().comm
        generation = everyone.broadcast_object(next_generation(run_dir, name) if rank == 0 else None)
        self._samples = SampleLedger(run_dir, name, rank, size)
        self._samples.begin(self.dataset.plan(Position()), self.position, generation)

    def trained(self, steps: int) -> None:
        """So many batches more have made their update."""
        if world.current().options.own_pace:  # each worker had some batches: none has had all
            return
        for _ in range(min(steps, len(self._drawn))):
            self._reached(self._drawn.popleft().after)
        if self._samples:
            self._samples.reached(self.position)

    def end_epoch(self, session: Session, stopped: bool) -> None:
        """Raises DataError where all workers together have left out too many records."""
        # Keras does not tell of a last call that had fewer batches than `steps_per_execution`.
        if not self._endless and not stopped:
            self._reached(Position(self._epoch + 1))
        self._epoch = self.position.epoch
        policy, everyone = self.dataset.loader.policy, world.current().comm
        if session.options.own_pace:  # a worker may be dead: none is asked
            policy.check(len(policy.known))
        elif any(everyone.agree("bad records", float(len(policy.known)))):
            policy.check(len(set().union(*everyone.allgather_object(sorted(policy.known)))))

    def epoch_begins(self) -> int:
        """Steps that are left of it."""
        self._epoch = self.position.epoch
        return self.dataset.plan(self.position).steps

    def mark(self) -> None:
        """The model is saved as it is now."""
        if self._samples:
            self._samples.reached(self.position, now=True)

    def close(self) -> None:
        """What was drawn after the last step was not trained on."""
        if self._samples:
            self._samples.end(self.position)
            self._samples = None

    def _reached(self, position: Position) -> None:
        self.position = self.dataset.position = position


_active: Stream | None = None


def _array(leaf: Any, dtype: Any) -> Any:
    """The leaf as the array that the pipeline was told of.

    Raises:
        DataError: it is of another type, which would lose something.
    """
    array = leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf)
    if array.dtype == dtype or dtype == np.object_:
        return array
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise DataError(
            f"Records differ in type: the first gave {np.dtype(dtype).name}, a later one {array.dtype.name}. Let `parse_fn` return the same for all, "
            "e.g. numpy.float32(value)."
        )
    return array.astype(dtype)


def _spec(leaf: Any) -> Any:
    """Any number of rows like those of ``leaf``."""
    import tensorflow as tf

    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSU":
        return tf.TensorSpec([None, *leaf.shape[1:]], tf.string)
    spec = tf.type_spec_from_value(leaf)
    if not isinstance(spec, tf.TensorSpec):
        raise DataError(
            f"Parsed records must be dense tensors or arrays. Received {spec}. Use FixedLenFeature, or tf.sparse.to_dense in `parse_fn`."
        )
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


def ranks() -> tuple[int, int]:
    """This worker's rank, and how many share the data.

    At their own pace over servers all workers read all batches, and each batch is trained on by one; with JAX all read all, and XLA splits each.
    """
    session = world.current()
    whole = session.options.own_pace or backend.computes_global_batches()
    return (0, 1) if whole else (session.world.rank, session.world.size)
