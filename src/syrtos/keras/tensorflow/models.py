"""Checks and settings of models that are trained on several workers with TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol, TypeGuard

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras import keras_internals, keras_origin
from syrtos.keras.features import finite, registry
from syrtos.keras.split import known_parts, shares, verdicts
from syrtos.keras.tensorflow import tf_internals
from syrtos.keras.tensorflow.input_policy import is_own_shard
from syrtos.keras.tensorflow.strategy import Strategy
from syrtos.records import record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model


class BatchNormalization(Protocol):
    """The layer of Keras 3 or Keras 2."""

    synchronized: bool


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Refuses to train under a strategy that knows nothing of the other workers.

    Raises:
        ConfigurationError: the model was made in the scope of another strategy, or before the
            script took over.
    """
    if world.explicit() and isinstance(strategy, Strategy) and world.current().world.size > 1:
        raise ConfigurationError(
            "The model was made before Horovod or SMDDP was initialized, and would split its"
            " batches over the workers. Call init() before the model is made."
        )
    size = world.sharing().world.size
    if size == 1 or isinstance(strategy, Strategy):
        return
    raise ConfigurationError(
        f"The model is trained under {type(strategy).__name__}, which knows nothing of the"
        f" {size} workers: each would train alone. Remove the strategy's scope from the script,"
        " or use `syrtos.keras.Strategy()` in its place."
    )


def check_class_weight(dataset: object, class_weight: object) -> None:
    """Refuses class weights on a data set that is split over the workers already.

    Raises:
        ConfigurationError: both are given.
    """
    # Keras would make another data set of it, which would be split again.
    if class_weight is not None and tf_internals.is_shared_out(dataset):
        raise ConfigurationError(
            "`class_weight` can't be given with a data set made by"
            " `experimental_distribute_dataset` or `distribute_datasets_from_function`: give `fit`"
            " the plain data set, or put sample weights into it."
        )


def check_dynamically_sharded(adapter: object) -> None:
    """Refuses data that workers read unalike, where each batch goes to the worker that asks next.

    Raises:
        ConfigurationError: the data set's policy says that the script shards it itself.
    """
    if is_own_shard(getattr(adapter, "_dataset", None)):
        raise ConfigurationError(
            "With parameter servers each batch goes to the worker that asks next, so all workers"
            " must read the same data; AutoShardPolicy.OFF says that each reads its own. Leave the"
            " policy out, or run with `--staleness 0`."
        )


def adapt(model: Model, session: Session, partitioned: bool) -> bool:
    """Prepares a model before one of its functions is made: applies the run's options.

    Args:
        model: the model.
        session: the workers.
        partitioned: whether workers compute the function's step together.

    Returns:
        Whether the script asks for compiled steps, and XLA is to compile this one in segments.
    """
    asks = keras_internals.asks_for_compilation(model)
    why = _why_not_compiled(session, partitioned) if asks and session.world.size > 1 else ""
    compiles = asks and session.world.size > 1 and not why
    if compiles:
        keras_internals.compile_in_segments(model)
    else:
        shares.without_compilation(model, why)
    if world.current().world.size > 1 and world.sharing().options.sync_batchnorm:
        synchronize_batchnorm(model)
    return compiles


def _why_not_compiled(session: Session, partitioned: bool) -> str:
    """Returns why XLA compiles no step of several workers; empty if it does."""
    if not partitioned or session.options.servers:
        return "each worker computes on rows of its own"
    if session.options.verifies:
        return "`syrtos verify` compares steps that are not compiled"
    # Programs for different CPUs may round differently, and replicas must stay equal to the last
    # bit.
    if not session.same_processors:
        return "the workers' hosts have CPUs of different kinds"
    if tf.config.list_logical_devices("GPU"):
        return "compiled steps of several workers were not tried on GPUs yet"
    return ""


def wraps_steps(model: Model, session: Session) -> bool:
    """Returns whether a model's steps are wrapped.

    They are on several workers, and in a recorded run of one unless XLA compiles them.
    """
    # XLA can't compile the counting of samples.
    return session.world.size > 1 or (
        bool(session.options.run_dir) and not getattr(model, "jit_compile", False)
    )


def needs_only_counting(session: Session) -> bool:
    """Returns whether a lone worker runs steps of plain Keras, whose samples are only counted."""
    asked = session.options
    return session.world.size == 1 and not (
        registry.others_defining("around_step", "count_samples")
        or finite.is_asked()
        or asked.sync_every
        or asked.servers
        or asked.verifies
    )


# The methods of a model that make what `fit`, `evaluate` and `predict` call for each batch.
_MAKING = {
    "fit": "make_train_function",
    "evaluate": "make_test_function",
    "predict": "make_predict_function",
}


@dataclasses.dataclass
class _Warnings:
    """The record of a model: whether a line has said that it takes whole batches."""

    of_whole_batches: bool = False


def takes_whole_batches(model: Model, method: str, session: Session) -> bool:
    """Returns whether the script overrides the method that makes the function for each batch.

    Such a function knows nothing of shares, so each worker gives it the whole batch, which is said
    once.

    Args:
        model: whose `fit`, `evaluate` or `predict` is called.
        method: its name.
        session: the workers.
    """
    making = _MAKING[method]
    if keras_origin.is_of_keras(known_parts.owner_of(type(model), making)) or not verdicts.is_split(
        session
    ):
        return False
    record = record_of(model, _Warnings)
    if not record.of_whole_batches:
        record.of_whole_batches = True
        verdicts.tell(
            f"its `{making}` is the script's own",
            session,
            f"`{method}` of {model.name}",
        )
    return True


def synchronize_batchnorm(model: Model, synchronized: bool = True) -> None:
    """Makes every BatchNormalization use statistics of the global batch, or of the rows it gets."""
    for layer in keras_internals.layers_of(model):
        if is_batchnorm(layer):
            layer.synchronized = synchronized


def is_batchnorm(layer: object) -> TypeGuard[BatchNormalization]:
    """Returns whether a layer is a BatchNormalization of Keras, or of a class derived from it."""
    # By the name: Keras 3 and Keras 2 have a class each.
    return any(base.__name__ == "BatchNormalization" for base in type(layer).__mro__)
