"""The private symbols of Keras 3 that syrtos replaces on TensorFlow, with the reasons.

They have been seen to work on Keras 3.13 to 3.16 (nightly). A patch wraps the original and falls
back to it wherever the process is a world of one. `apply_all` is called by the import hook of
`syrtos run`; nothing is patched in a process that syrtos did not start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import keras
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Array
from syrtos.keras import fitting, keras_internals, patches, patching, updates
from syrtos.keras.datasets.streams import stream_of
from syrtos.keras.features import asynchronous, registry
from syrtos.keras.keras_origin import is_of_keras
from syrtos.keras.patching import Method, Patch, by_all
from syrtos.keras.split import share_patches
from syrtos.keras.split.verdicts import is_split
from syrtos.keras.tensorflow import (
    compiled_update,
    gradients,
    keras3_data,
    models,
    sharded_update,
    strategy,
)
from syrtos.keras.tensorflow import patching as common
from syrtos.keras.tensorflow.counted_steps import count_in_graph, report_after
from syrtos.keras.tensorflow.input import spec_of_share
from syrtos.keras.tensorflow.parameter_server import remote_optimizer
from syrtos.keras.tensorflow.split_function import (
    TensorFlowFunction,
    functions_of,
    partitions,
)
from syrtos.keras.trainer import replicas
from syrtos.records import record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import EpochIterator, Model, Optimizer, Variable
    from syrtos.keras.tensorflow.types import BatchStep, Gradient

    class _TrainedModel(Model, Protocol):
        """A model as its trainer on TensorFlow sees it."""

        metrics_variables: Sequence[keras.Variable]
        predict_function: Callable[..., object] | None
        predict_step: BatchStep
        test_step: BatchStep
        train_step: BatchStep

        def _symbolic_build(self, iterator: object = None, data_batch: object = None) -> None: ...

    class _ScaledOptimizer(Optimizer, Protocol):
        def _common_apply(self, grads: object, trainable_variables: object = None) -> None: ...

    class _EpochIterator(EpochIterator, Protocol):
        _distribute_strategy: tf.distribute.Strategy
        _distributed_dataset: tf.data.Dataset

    class _Variable(Protocol):
        _value: object

        @property
        def value(self) -> tf.Variable: ...


@functools.cache
def apply_to_optimizers() -> None:
    """Installs the patches that reduce gradients, for the optimizers that were asked to reduce."""
    patching.install(OPTIMIZERS)


@functools.cache
def apply_all() -> None:
    """Installs all patches, once per process."""
    apply_to_optimizers()
    common.patch_tensorflow()
    patching.install(
        [
            *share_patches.LOSSES,
            *share_patches.SEEDS,
            *STRATEGY,
            *TRAINER,
            *compiled_update.PATCHES,
            *patches.PATCHES,
        ]
    )
    if world.current().servers:
        registry.refuse_steps("with parameter servers")
    patching.install(registry.patches({"sharding": sharded_update.PATCHES}))


# -- optimizers: reduce, then clip, then check -----------------------------------------------------


def _begin_equal_then_accumulate(original: Method) -> Method:
    def backend_apply_gradients(
        self: Optimizer, grads: list[Gradient], trainable_variables: Sequence[Variable]
    ) -> None:
        if asynchronous.servers():
            remote_optimizer.apply(self, grads, trainable_variables)
            return
        everything = getattr(self, "_trainable_variables", trainable_variables)
        with updates.update(self, trainable_variables) as update:
            gradients.begin_update(update, everything)
            own = list(gradients.to_accumulate(self, grads))
            apply = registry.around_update(
                update, lambda given: original(self, given, trainable_variables)
            )
            apply(own)

    return backend_apply_gradients


def _reduced_already(original: Method) -> Method:
    def all_reduce_sum_gradients(self: Optimizer, grads_and_vars: object) -> object:
        done = registry.trains_apart() or gradients.are_reduced() or gradients.reduction_of(self)
        return grads_and_vars if done else original(self, grads_and_vars)

    return all_reduce_sum_gradients


def _common_apply(
    self: _ScaledOptimizer, grads: object, trainable_variables: object = None
) -> None:
    self._common_apply(grads, trainable_variables=trainable_variables)


# -- trainer ---------------------------------------------------------------------------------------


def _make_function(original: Method) -> Method:
    def make_function(self: Model, step_function: Method) -> Method:
        session, name = world.sharing(), step_function.__name__
        compiles = models.adapt(self, session, partitions(session, name))
        if not models.wraps_steps(self, session):
            return original(self, step_function)
        if models.needs_only_counting(session):
            return report_after(session, original(self, count_in_graph(step_function)))
        found = TensorFlowFunction(
            self, session, step_function, _is_stock(step_function, name), name, compiles
        )
        found.function = original(self, found.compute_step)
        found.takes_batch_first = keras_internals.takes_batch_first()
        return lambda iterator: found.call(iterator, self.steps_per_execution)

    return make_function


def _is_stock(step: BatchStep, name: str) -> bool:
    """Returns whether a model's step is Keras's own."""
    # A step that is replaced while the model trains counts as the one that it replaces, which has
    # no `__func__`.
    return getattr(step, "__func__", step) is getattr(keras.Model, name, None)


def _make_predict_function(original: Method) -> Method:
    def make_predict_function(self: _TrainedModel, force: bool = False) -> object:
        session, name = world.sharing(), "predict_step"
        compiles = models.adapt(self, session, partitions(session, name))
        if session.world.size == 1 or not (self.predict_function is None or force):
            return original(self, force)
        step = _predict_step_of(self)
        stock = _is_stock(step, name)
        found = TensorFlowFunction(self, session, step, stock, name, compiles)
        functions_of(self)[name] = found
        object.__setattr__(self, name, found.compute_step)
        original(self, True)
        assert self.predict_function is not None
        found.function = self.predict_function

        def call(batches: Sequence[object]) -> object:
            return found.call(batches, len(batches))

        # Keras calls what it finds here, where the original has put its own.
        self.predict_function = call
        return call

    return make_predict_function


def _predict_step_of(model: _TrainedModel) -> BatchStep:
    """Returns a model's `predict_step` as the script has it."""
    replaced = functions_of(model).get("predict_step")
    return replaced.step if replaced else model.predict_step


def _build_from_spec(original: Method) -> Method:
    def maybe_symbolic_build(
        self: _TrainedModel, iterator: _EpochIterator | None = None, data_batch: object = None
    ) -> None:
        is_chosen = strategy.is_chosen()
        if is_chosen and iterator is not None:
            _draw_an_order(iterator)
        steps = [
            (self.train_step, "train_step"),
            (self.test_step, "test_step"),
            (_predict_step_of(self), "predict_step"),
        ]
        session = world.current()
        # Before the first step: to keep them, or to give them to servers.
        needs_weights = session.options.sync_every or session.options.servers
        # In one process the first step builds the model, except in the scope of a strategy.
        # Initializers of Keras draw the same numbers before it; others may not.
        draws_alike = is_chosen or not _has_other_initializers(self)
        # A step of the script's own may call other layers than `call` does: a symbolic build that
        # fails half way would lock layers that have no variables yet.
        if not needs_weights and not (
            draws_alike and all(_is_stock(step, name) for step, name in steps)
        ):
            return
        batch = data_batch if iterator is None else iterator._distributed_dataset.element_spec
        batch = spec_of_share(batch, session.input_comm)
        # A model that can't be built from shapes alone is built by its first step, as in one
        # process.
        with (
            fitting.optimizer_built_by_training(self),
            contextlib.suppress(Exception),
        ):
            known = set(map(id, self.metrics_variables))
            self._symbolic_build(data_batch=batch)
            made = [variable for variable in self.metrics_variables if id(variable) not in known]
            if iterator is not None:  # `train_on_batch` resets no metrics
                record_of(self, _NewMetrics).values = [(v, v.numpy()) for v in made]

    return maybe_symbolic_build


def _has_other_initializers(model: Model) -> bool:
    """Returns whether a layer has an initializer that is none of Keras's.

    It may draw from TensorFlow's own generator, whose numbers depend on the graph that they are drawn
    in.
    """
    given = (
        value
        for layer in keras_internals.layers_of(model)
        for name, value in vars(layer).items()
        if name.endswith("initializer") and value is not None
    )
    # A function and a class have a name, and an initializer of a class has not.
    return not all(is_of_keras(v if hasattr(v, "__name__") else type(v)) for v in given)


@dataclasses.dataclass
class _NewMetrics:
    """The record of a model whose metrics were made before its first step.

    Attributes:
        values: their variables and the values that these begin with.
    """

    values: Sequence[tuple[keras.Variable, Array]] = ()


def _beginning_as_made(original: Method) -> Method:
    """Wraps `reset_metrics`: one process makes metrics after it, in the first step."""

    def reset_metrics(self: keras.Model) -> None:
        original(self)
        record = record_of(self, _NewMetrics)
        for variable, value in record.values:
            variable.assign(value)
        record.values = ()

    return reset_metrics


def _draw_an_order(iterator: _EpochIterator) -> None:
    """Draws a first batch, from which one process would build a model of a strategy's scope."""
    # So its `fit` begins with the second order of a data set that is shuffled for each iterator.
    dataset = iterator._distributed_dataset
    # Adapters of generators read ahead by as much as threads come to.
    of_tensors = type(iterator.data_adapter).__name__ in ("TFDatasetAdapter", "ArrayDataAdapter")
    if of_tensors and isinstance(dataset, tf.data.Dataset) and stream_of(iterator) is None:
        next(iter(dataset), None)


def _on_batch(original: Method) -> Method:
    """Wraps `train_on_batch` and its like: all workers compute such a batch with equal weights."""

    def on_batch(self: Model, *args: object, **kwargs: object) -> object:
        session = world.sharing()
        if original.__name__ == "train_on_batch":
            for feature in registry.active():
                feature.train_on_batch_begins()
        fitting.refuse_other_threads(original.__name__)
        if is_split(session):
            replicas.compute_equal(session.comm, self, original.__name__)
        result = original(self, *args, **kwargs)
        if original.__name__ == "train_on_batch":
            replicas.was_trained(self)
        return result

    return on_batch


# -- variables -------------------------------------------------------------------------------------


def _noting_keras(original: Method) -> Method:
    def initialize(self: _Variable, value: object) -> None:
        original(self, value)
        if isinstance(self._value, tf.Variable):
            asynchronous.note_keras(self._value)

    return initialize


# -- what is replaced, and why ---------------------------------------------------------------------

_TRAINER = "keras:Model"
_LOSS = "keras.src.losses.loss"
_REPLICAS = (
    "The original divides by replicas, also in a loop without `strategy.run`, in which nothing is"
    " summed."
)
_BY_HAND = "It takes a batch as it is, without a data set that could be split."

OPTIMIZERS = [
    *share_patches.optimizers(_begin_equal_then_accumulate),
    Patch(
        "keras:Optimizer",
        "_all_reduce_sum_gradients",
        _reduced_already,
        "tf.distribute's own reduction comes after clipping; ours has been done.",
    ),
    Patch(
        share_patches.SCALING,
        "_tf_apply",
        lambda _original: _common_apply,
        "The original refuses plain custom loops under a default strategy; with one replica per"
        " process there is nothing to merge.",
    ),
]
TRAINER = [
    Patch(
        _TRAINER,
        "_make_function",
        _make_function,
        "Where `train_step` and `test_step` meet their data, and become a program of all workers.",
    ),
    Patch(
        _TRAINER,
        "make_predict_function",
        _make_predict_function,
        "The same for `predict_step`, whose rows are gathered.",
    ),
    Patch(
        _TRAINER,
        "_maybe_symbolic_build",
        _build_from_spec,
        "The original draws a batch, which moves shuffles and uses up generators.",
    ),
    Patch(
        _TRAINER,
        "reset_metrics",
        _beginning_as_made,
        "Metrics are made before the first reset, which would overwrite the values that they begin with.",
    ),
    Patch(_TRAINER, "train_on_batch", by_all(_on_batch, fitting.inside_fit), _BY_HAND),
    Patch(_TRAINER, "test_on_batch", _on_batch, _BY_HAND),
    Patch(_TRAINER, "predict_on_batch", _on_batch, _BY_HAND),
    *common.methods_of(_TRAINER),
    Patch(
        "keras.src.backend.tensorflow.trainer:TFEpochIterator",
        "__init__",
        keras3_data.epoch_iterator,
        "Workers compare lengths, and take shares.",
    ),
    Patch(
        "keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter",
        "get_tf_dataset",
        keras3_data.use_planned_dataset,
        "Planned data sets have their own order, and come as a worker's share.",
    ),
]
STRATEGY = [
    Patch(_LOSS, "scale_loss_for_distribution", common.only_in_strategy_run, _REPLICAS),
    Patch(_LOSS, "unscale_loss_for_distribution", common.only_in_strategy_run, _REPLICAS),
    Patch(
        "keras:Variable",
        "_initialize",
        _noting_keras,
        "Who has made a variable says what becomes of it where workers train at their own pace.",
    ),
]
