"""Batches of Keras 2 (`tf_keras`): workers' shares, and batches for workers at their own pace."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf
from tf_keras.src.engine import data_adapter

from syrtos.comm import world
from syrtos.keras import fitting
from syrtos.keras.features import asynchronous
from syrtos.keras.patching import Method
from syrtos.keras.tensorflow import models, tf_internals
from syrtos.keras.tensorflow.input import dataset_by_hand
from syrtos.keras.tensorflow.input_policy import cut_by_steps, is_own_shard

if TYPE_CHECKING:

    class _Handler(Protocol):
        """The `DataHandler` of Keras 2."""

        _adapter: object
        _dataset: tf.data.Dataset
        _inferred_steps: int | None

    class _Model(Protocol):
        built: bool

        def build(self, input_shape: object) -> None: ...


def handler(original: Method) -> Method:
    """Wraps `DataHandler.__init__`: workers compare lengths, batches know their sample counts."""

    def init(self: _Handler, *args: object, **kwargs: Any) -> None:
        with cut_by_steps():
            original(self, *args, **kwargs)
        if kwargs.get("distribute", True) and asynchronous.shards_dynamically():
            models.check_dynamically_sharded(self._adapter)
            self.__class__ = DynamicDataHandler
        # In a world of one a step takes what it is given for whole batches.
        if world.sharing().world.size > 1:
            self._dataset = tf_internals.counted_pipeline(self._dataset)
        dataset = args[0] if args else kwargs.get("x")
        self._inferred_steps = fitting.agree_on_length(self._inferred_steps, is_own_shard(dataset))
        options = world.current().options
        # Weights before the first step: to keep them, to give them to servers, or as Horovod's
        # broadcast wants them. Else the first step builds the model, as in one process: names of
        # weights depend on that.
        if options.sync_every or options.servers or world.explicit():
            _build(kwargs.get("model"), self._dataset.element_spec)

    return init


def single_batch(original: Method) -> Method:
    """Wraps `single_batch_iterator`: steps can cut the batch of `train_on_batch` and its like.

    Its sizes stay known, so that TensorFlow traces a step as often as in one process: a new trace
    begins its random operations anew.
    """

    def single_batch_iterator(
        strategy: tf.distribute.Strategy, *args: object, **kwargs: object
    ) -> object:
        if world.sharing().world.size == 1:
            return original(strategy, *args, **kwargs)
        numbering = types.SimpleNamespace(experimental_distribute_dataset=dataset_by_hand)
        return original(numbering, *args, **kwargs)

    return single_batch_iterator


class DynamicDataHandler(data_adapter.DataHandler):
    """The batches of an epoch that this worker takes, where workers train at their own pace.

    All workers read the same data. A piece of the round's work is as many batches as a call of the
    training function takes. Validation goes through all of its data.
    """

    _iterator: Any = None
    _position = _first = 0

    def enumerate_epochs(self) -> Generator[tuple[int, Iterator[object]], None, None]:
        for epoch, iterator in super().enumerate_epochs():
            if iterator is not self._iterator:
                self._iterator, self._position, self._first = iterator, 0, 0
            yield epoch, iterator

    def steps(self) -> Generator[int, None, None]:
        servers = asynchronous.asynchronous_servers()
        if servers is None or not asynchronous.shards_dynamically():
            yield from super().steps()
            return
        asynchronous.begin_round()
        batches, each = self._inferred_steps, self._steps_per_execution.numpy().item()
        pieces = None if batches is None else -(-batches // each)
        while (piece := servers.take(pieces)) is not None:
            count = each if batches is None else min(each, batches - piece * each)
            # The batches between belong to other workers.
            for _ in range(self._first + piece * each - self._position):
                next(self._iterator)
            self._position = self._first + piece * each + count
            self._step_increment = count - 1
            with self._executing(count, each):
                yield piece * each
        self._first += batches or 0

    @contextlib.contextmanager
    def _executing(self, count: int, usually: int) -> Iterator[None]:
        """Makes a call of the training function make ``count`` steps, within the context."""
        if count == usually:
            yield
            return
        self._steps_per_execution.assign(count)
        try:
            yield
        finally:
            self._steps_per_execution.assign(usually)

    @contextlib.contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
        """Ends an epoch where its data ends, and meets the other workers there."""
        if not asynchronous.shards_dynamically():
            with super().catch_stop_iteration():
                yield
            return
        ended = False
        try:
            yield
            self.sync()
        except (StopIteration, RuntimeError, tf.errors.OutOfRangeError) as end:
            if isinstance(end, RuntimeError) and not isinstance(end.__cause__, StopIteration):
                raise
            ended = True
        fitting.check_had_batch(bool(asynchronous.held_optimizers()))
        if asynchronous.end_round(ended):  # for one means for all: they read the same
            self._insufficient_data = (
                self._inferred_steps is not None or not self._adapter.should_recreate_iterator()
            )


def _build(model: _Model | None, spec: object) -> None:
    """Builds a model without input shape: all workers then have weights before the first step."""
    if model is None or model.built:
        return
    spec = getattr(spec, "data", spec)  # of whole batches, or of shares
    inputs = spec[0] if isinstance(spec, tuple) else spec
    # A model that can't be built from shapes alone is built by its first step, as in one process.
    with contextlib.suppress(Exception):
        model.build(tf.nest.map_structure(lambda each: each.shape, inputs))
