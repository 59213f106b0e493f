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
from syrtos.data.loader import Batch, Loader, Position
from syrtos.data.plan import Plan
from syrtos.data.proof import SampleLedger, next_generation
from syrtos.errors import DataError

_names = collections.Counter[str]()


class PlannedDataset(keras.utils.PyDataset):
    """A data set for `fit`, `evaluate` and `predict`.

    Attributes:
        position: how far training has come; saved with the model.
        name: of this data set in the script, the same in each of its runs.
        endless: epochs follow one another without a break, because `fit` counts steps itself.
    """

    def __init__(self, loader: Loader) -> None:
        """Raises DataError where there are no records."""
        super().__init__()
        if not len(loader.source):
            raise DataError("The data set is empty: none of its files has a record.")
        self.loader = loader
        self.position = Position()
        self.endless = False
        kind = f"{loader.source.fingerprint}-{loader.seed}"
        self.name = f"{kind}-{_names[kind]}"
        _names[kind] += 1
        if keras.backend.backend() == "tensorflow":
            from syrtos.keras import patches

            patches.apply_all()

    @property
    def num_batches(self) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Global batches left in the epoch; None if there is no end."""
        return None if self.endless else self.plan(self.position).steps

    def __getitem__(self, index: int) -> Any:
        """This worker's share of one of them."""
        return self.loader.load(self.plan(self.position), index, *ranks()).data

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
        self._drawn: collections.deque[Batch] = collections.deque()
        self._samples: SampleLedger | None = None

    def pipeline(self) -> Any:
        """A `tf.data.Dataset` of this worker's shares."""
        import tensorflow as tf

        spec = tf.nest.map_structure(_spec, self._standardized(self.dataset.loader.nothing()))
        return tf.data.Dataset.from_generator(self._generate, output_signature=spec).prefetch(2)

    def _generate(self) -> Iterator[Any]:
        """Runs in a thread of the pipeline, a few batches ahead of training."""
        drawn = self._drawn = collections.deque()
        position = self.dataset.position
        while True:
            for batch in self._loaded(position):
                # Before any worker can have finished this step: a checkpoint of rank 0 must not be ahead of a ledger.
                if self._samples:
                    self._samples.add(batch)
                drawn.append(batch)
                yield self._standardized(batch.data)
            if not self.dataset.endless:
                return
            position = Position(position.epoch + 1)

    def _loaded(self, position: Position) -> Iterator[Batch]:
        """The rest of an epoch; what goes wrong is kept for whoever sees TensorFlow's error about it."""
        batches = self.dataset.loader.batches(self.dataset.plan(position), *ranks())
        while True:
            with world.remembering_errors():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    # -- training -----------------------------------------------------------------------------------

    def begin(self, position: Position | None, session: Session) -> None:
        """Training begins; at ``position`` if it goes on from there."""
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


def _spec(leaf: Any) -> Any:
    """Any number of rows like those of ``leaf``."""
    import tensorflow as tf

    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSU":
        leaf = tf.constant(leaf, tf.string)
    spec = tf.type_spec_from_value(leaf)
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if isinstance(spec, tf.TensorSpec) else spec


def ranks() -> tuple[int, int]:
    """This worker's rank, and how many share the data. At their own pace over servers workers are dealt batches that all of them read."""
    session = world.current()
    return (0, 1) if session.options.own_pace else (session.world.rank, session.world.size)
