"""Batches of Keras 3: workers' shares, and the batches of workers that train at their own pace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf
from keras.src.backend.tensorflow import trainer as tf_trainer

from syrtos.comm import world
from syrtos.keras import fitting, keras_internals
from syrtos.keras.datasets.planned import PlannedDataset, Stream
from syrtos.keras.features import asynchronous
from syrtos.keras.patching import Method
from syrtos.keras.tensorflow import models, planned_input, tf_internals
from syrtos.keras.tensorflow.input_policy import cut_by_steps, is_own_shard

if TYPE_CHECKING:

    class _Adapter(Protocol):
        """Keras's adapter of a `PyDataset`."""

        py_dataset: object
        syrtos_stream: Stream
        _standardize_batch: Callable[[object], object]


def epoch_iterator(original: Method) -> Method:
    """Wraps `TFEpochIterator.__init__`: workers compare lengths, and steps can cut the batches."""

    def init(self: Any, *args: object, **kwargs: object) -> None:  # which may get another class
        models.check_class_weight(kwargs.get("x"), kwargs.get("class_weight"))
        if isinstance(kwargs.get("x"), PlannedDataset):
            kwargs["shuffle"] = False  # it has an order of its own
        with cut_by_steps():
            original(self, *args, **kwargs)
        # In a world of one a step takes what it is given for whole batches.
        if world.sharing().world.size > 1:
            self._distributed_dataset = tf_internals.counted_pipeline(self._distributed_dataset)
        fitting.about_to_use(self)
        if asynchronous.shards_dynamically():
            models.check_dynamically_sharded(self.data_adapter)
            self.__class__ = DynamicEpochIterator
            return
        models.check_strategy(self._distribute_strategy)
        dataset = getattr(self.data_adapter, "_dataset", None)
        keras_internals.set_length(
            self, fitting.agree_on_length(self._num_batches, is_own_shard(dataset))
        )

    return init


def use_planned_dataset(original: Method) -> Method:
    """Wraps `PyDatasetAdapter.get_tf_dataset`: a planned data set comes as a worker's share."""

    def get_tf_dataset(self: _Adapter) -> tf.data.Dataset:
        if not isinstance(self.py_dataset, PlannedDataset):
            return original(self)
        self.syrtos_stream = Stream(self.py_dataset, self._standardize_batch)
        return tf_internals.shared_out(planned_input.pipeline_of(self.syrtos_stream))

    return get_tf_dataset


class DynamicEpochIterator(tf_trainer.TFEpochIterator):
    """The batches of an epoch that this worker takes, where workers train at their own pace.

    All workers read the same data. A piece of the round's work is as many batches as a call of the
    training function takes.
    """

    _iterator: Any = None
    _position = 0
    _first = 0

    def _enumerate_iterator(self) -> Generator[tuple[int, int, Any], None, None]:
        self.data_adapter.on_epoch_begin()
        servers, each = asynchronous.asynchronous_servers(), self.steps_per_execution
        assert servers is not None
        asynchronous.begin_round()
        if self._iterator is None or self.steps_per_epoch is None:
            self._iterator, self._position, self._first = iter(self._get_iterator()), 0, 0
        batches = self.steps_per_epoch or self.data_adapter.num_batches
        pieces = None if batches is None else -(-batches // each)
        while (piece := servers.take(pieces)) is not None:
            # The batches between belong to other workers.
            for _ in range(self._first + piece * each - self._position):
                next(self._iterator)
            self._position = self._first + (piece + 1) * each
            yield piece * each, piece * each + each - 1, self._iterator
        if pieces is not None:
            self._first += pieces * each

    @contextlib.contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
        """Ends an epoch where its data ends, and meets the other workers there."""
        try:
            yield
            self.tf_sync()
        except (StopIteration, RuntimeError, tf.errors.OutOfRangeError) as end:
            if isinstance(end, RuntimeError) and not isinstance(end.__cause__, StopIteration):
                raise
            self._iterator = None
        self.data_adapter.on_epoch_end()
        fitting.check_had_batch(bool(asynchronous.held_optimizers()))
        if asynchronous.end_round(
            self._iterator is None
        ):  # for one means for all: they read the same
            self._iterator = None
            if self.steps_per_epoch:
                self._interrupted_warning()
