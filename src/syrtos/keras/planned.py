"""What `fit` takes of a planned data set: each worker's own records, in an order that no number of workers changes.

Keras knows it as a `PyDataset`. With TensorFlow its batches come as a `tf.data` pipeline; with other backends as they are.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.data.loader import Chunk, Loader, Position, Share
from syrtos.data.plan import Plan
from syrtos.data.proof import SampleLedger, next_generation
from syrtos.errors import DataError

# Batches that are ready before a step asks for them.
_READ_AHEAD = 3
_names = collections.Counter[str]()


class PlannedDataset(keras.utils.PyDataset):
    """A data set for `fit`, `evaluate` and `predict`.

    Attributes:
        position: how far training has come; saved with the model.
        name: of this data set in the script, the same in each of its runs.
    """

    def __init__(self, loader: Loader) -> None:
        """Raises DataError where there are no records."""
        super().__init__()
        if not len(loader.source):
            raise DataError("The data set is empty: none of its files has a record.")
        self.loader = loader
        self.position = Position()
        kind = f"{loader.source.fingerprint}-{loader.seed}"
        self.name = f"{kind}-{_names[kind]}"
        _names[kind] += 1
        if keras.backend.backend() == "tensorflow":
            from syrtos.keras import patches

            patches.apply_all()

    @property
    def num_batches(self) -> int:
        """Global batches left in the epoch."""
        return self.plan(self.position).steps

    def __getitem__(self, index: int) -> Any:
        """This worker's share of one of them."""
        return self.loader.load(self.plan(self.position), range(index, index + 1), *ranks()).data

    def on_epoch_end(self) -> None:
        """Where nothing counts the steps, the next epoch begins."""
        if keras.backend.backend() != "tensorflow":
            self.position = Position(self.position.epoch + 1)

    def plan(self, position: Position) -> Plan:
        """What is left of the epoch at ``position``."""
        per_worker = world.explicit() or world.current().options.batch == "per-worker"
        return self.loader.plan(position, ranks()[1] if per_worker else 1)


class Stream:
    """The batches of one `fit`, `evaluate` or `predict`, as a `tf.data` pipeline whose iterators begin where training is."""

    def __init__(self, dataset: PlannedDataset, standardized: Callable[[Any], Any]) -> None:
        """``standardized`` makes of a batch what the rest of Keras expects."""
        self.dataset = dataset
        self._standardized = standardized
        self._drawn: collections.deque[Share] = collections.deque()
        self._samples: SampleLedger | None = None
        self._endless = False

    def pipeline(self) -> Any:
        """A `tf.data.Dataset` of this worker's shares.

        One call of Python reads several small batches, which are taken apart by the pipeline: a call has its price.

        Raises:
            DataError: parsed records are not dense.
        """
        import tensorflow as tf

        specs = tf.nest.map_structure(_spec, self._standardized(self.dataset.loader.nothing()))
        flat = tf.nest.flatten(specs)
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

            def batch(number: tf.Tensor) -> Any:
                rows = [leaf[splits[number] : splits[number + 1]] for leaf in shaped]
                return tf.nest.pack_sequence_as(specs, rows)

            return tf.data.Dataset.range(tf.size(splits, tf.int64) - 1).map(batch)

        iterators = tf.data.Dataset.from_tensors(0).map(lambda _: tf.numpy_function(start, [], tf.int64))
        return iterators.flat_map(chunks).flat_map(batches).prefetch(_READ_AHEAD)

    def _generate(self) -> Iterator[list[Any]]:
        """Runs in a thread of the pipeline, a few batches ahead of training: splits, and the flat leaves of several batches."""
        import tensorflow as tf

        drawn = self._drawn = collections.deque()
        position = self.dataset.position
        while True:
            for chunk in self._loaded(position):
                for share in chunk.shares:
                    # Before any worker can have finished this step: a checkpoint of rank 0 must not be ahead of a ledger.
                    if self._samples:
                        self._samples.add(share)
                    drawn.append(share)
                yield [chunk.splits, *(_array(leaf) for leaf in tf.nest.flatten(self._standardized(chunk.data)))]
            if not self._endless:
                return
            position = Position(position.epoch + 1)

    def _loaded(self, position: Position) -> Iterator[Chunk]:
        """The rest of an epoch; what goes wrong is kept for whoever sees TensorFlow's error about it."""
        chunks = self.dataset.loader.chunks(self.dataset.plan(position), *ranks())
        while True:
            with world.remembering_errors():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    # -- training -----------------------------------------------------------------------------------

    def begin(self, position: Position | None, session: Session) -> None:
        """Training begins; at ``position`` if it goes on from there. Epochs follow one another: the next is read while this one ends."""
        self._endless = not session.options.own_pace
        self.dataset.position = position or self.dataset.position
        session.ledger.say(input="planned")
        run_dir, (rank, size) = session.options.run_dir, ranks()
        if not run_dir or session.options.own_pace:
            return
        self.dataset.loader.policy.write_to(run_dir, rank)
        everyone = world.current().comm
        generation = everyone.broadcast_object(next_generation(run_dir, self.dataset.name) if rank == 0 else None)
        self._samples = SampleLedger(run_dir, self.dataset.name, rank, size)
        self._samples.begin(self.dataset.plan(Position()), self.dataset.position, generation)

    def trained(self, steps: int) -> None:
        """So many batches more have made their update."""
        for _ in range(min(steps, len(self._drawn))):
            self.dataset.position = self._drawn.popleft().after

    def end_epoch(self, session: Session) -> None:
        """Raises DataError where all workers together have left out too many records."""
        policy = self.dataset.loader.policy
        policy.check(int(sum(session.comm.agree("bad records", float(len(policy.known))))))

    def end(self) -> None:
        """What was drawn after the last step was not trained on."""
        if self._samples:
            self._samples.end(self.dataset.position)
            self._samples = None


def _array(leaf: Any) -> Any:
    return leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf)


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
    """This worker's rank, and how many share the data. At their own pace over servers workers are dealt batches that all of them read."""
    session = world.current()
    return (0, 1) if session.options.own_pace else (session.world.rank, session.world.size)
