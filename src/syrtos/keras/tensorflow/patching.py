"""What the patches of Keras 3 and Keras 2 have in common."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from typing import Any

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.keras import asynchronous, files, temporary, timing
from syrtos.keras.patching import Method, replace, replace_everywhere
from syrtos.keras.tensorflow import files as tf_files
from syrtos.keras.tensorflow import gradients, models, ops, tf_internals, tf_internals_graphs
from syrtos.keras.tensorflow import step as step_module
from syrtos.keras.tensorflow.input import policy_ignored
from syrtos.keras.tensorflow.step import StepScope, current_step, functions_of_step, rows_of, training_now

# Far apart, so that counters that seeds are mixed with don't meet.
SEED_STRIDE = 0x9E3779


@functools.cache
def patch_tensorflow() -> None:
    """Installs what does not depend on the version of Keras."""
    # A strategy of TensorFlow's own would train each worker alone.
    for strategy in (tf.distribute.Strategy, tf.compat.v1.distribute.Strategy):
        replace(strategy, "scope", _refusing_scope)
    tf_internals.watch_functions(functions_of_step, step_module.calling)
    tf_internals.watch_iterators(timing.waiting_for_data)
    tf_internals.watch_tracing(timing.tracing)
    replace(tf.GradientTape, "__enter__", timing.recording)
    replace(tf.GradientTape, "__exit__", timing.recorded)
    replace(tf.GradientTape, "gradient", timing.as_computing)
    # A worker reads what it has logged to a folder that it made for itself.
    replace(tempfile, "mkdtemp", temporary.remembering)
    _patch_files()


def _patch_files() -> None:
    """Files that TensorFlow writes: once for all workers, complete or not at all."""
    # `tf.saved_model.save` and `load`, which Keras calls too.
    replace_everywhere(tf_internals.saved_model_save, "save", files.writing("export_dir"))
    replace_everywhere(tf_internals.saved_model_load, "load", files.reading("export_dir"))
    # Behind `tf.train.Checkpoint`, its managers, and Keras 2's weights: counters and lists of checkpoints go on on each worker.
    replace(tf_internals.TrackableSaver, "save", tf_files.checkpointing)
    replace(tf_internals.TrackableSaver, "restore", files.reading("save_path"))
    replace_everywhere(tf_internals.checkpoint_management, "latest_checkpoint", tf_files.latest)
    # Workers log the same numbers: TensorBoard would show them twice.
    replace_everywhere(tf_internals.summary_ops, "create_file_writer_v2", tf_files.writer, "create_file_writer")


def _refusing_scope(original: Method) -> Method:
    """`scope` of a strategy that is not ours raises a ConfigurationError where there are several workers."""

    def scope(self: Any) -> Any:
        if not type(self).__name__.startswith("_DefaultDistribution"):  # TensorFlow's own "none" is no choice
            models.check_strategy(self)
        return original(self)

    return scope


# -- losses -------------------------------------------------------------------------------------------


def only_in_strategy_run(original: Method) -> Method:
    """Keras divides a loss by the strategy's replicas. That is right where replicas are summed, in `strategy.run`; elsewhere a worker's loss is that
    of a whole batch, as in one process."""

    def scale(value: Any) -> Any:
        return original(value) if gradients.in_strategy_run() else value

    return scale


def masked_globally(weights: Any, mask: Any) -> Any:
    """Turns mask weights normalized within the share into weights normalized within the global batch."""
    step = current_step()
    if step is None:
        return weights
    mask = tf.cast(mask, tf.float32)
    elements, valid = tf.cast(tf.size(mask), tf.float32), tf.reduce_sum(mask)
    everywhere = total_over_workers(step, elements) / tf.maximum(total_over_workers(step, valid), 1.0)
    return weights * tf.cast(everywhere * tf.math.divide_no_nan(valid, elements), weights.dtype)


def counting_share(original: Method) -> Method:
    """A scalar that a mean or a sum is given counts as one value of one batch: here it is weighted by this worker's part of the samples."""

    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        if step is None or sample_weight is not None:
            return original(self, values, sample_weight=sample_weight)
        scalar = tf.convert_to_tensor(values).shape.rank == 0
        return original(self, values, sample_weight=step.fraction() if scalar else None)

    return update_state


def total_over_workers(step: StepScope, values: tf.Tensor) -> tf.Tensor:
    """The sum of all elements of all workers that have samples, float32, without a gradient."""
    mine = tf.where(step.active, tf.reduce_sum(tf.cast(values, tf.float32)), 0.0)
    return ops.allreduce(step.session.comm, tf.stop_gradient(mine))


# -- random numbers -------------------------------------------------------------------------------------


def rank_to_seed() -> int:
    """What tells the seeds of workers apart: 0 for numbers that must be equal on all, as those that weights are made of."""
    step, rank = current_step(), world.current().world.rank
    # At their own pace workers share no step; in a graph of a script's own nothing is initialized either.
    training = step.training if step else bool(asynchronous.own() and (training_now() or tf_internals_graphs.graph()))
    return rank if training else 0


# -- optimizers -----------------------------------------------------------------------------------------


def paused(original: Method) -> Method:
    """What the method assigns is equal on all workers already."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with step_module.paused(), timing.updating():
            return original(self, *args, **kwargs)

    return method


# -- models ---------------------------------------------------------------------------------------------


def agreeing(original: Method) -> Method:
    """All workers call the method, or all get an error that says which rank calls which."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        world.sharing().comm.agree(f"model.{original.__name__}")
        name = original.__name__
        with (
            policy_ignored() if name == "predict" else contextlib.nullcontext(),
            contextlib.nullcontext() if name == "fit" else asynchronous.on_all_data(),
        ):
            return original(self, *args, **kwargs)

    return method


def gathered_predict_step(session: world.Session, step: Method, data: Any) -> Any:
    """Predicts this worker's share and gathers the rows of all, in order. With batches per worker each keeps its own."""
    with StepScope(session, data, training=False).entered() as scope:
        outputs = step(scope.data)
        mine = tf.nest.map_structure(lambda out: rows_of(scope.active, out) if out.shape.rank != 0 else out, outputs)
        if session.options.batch == "per-worker":
            return mine
        return tf.nest.map_structure(functools.partial(gathered, session.comm), mine)


def gathered(comm: Communicator, output: Any) -> Any:
    """The rows of all workers, in order, of a tensor or `tf.RaggedTensor`; a scalar stays as it is."""
    if isinstance(output, tf.RaggedTensor):
        lengths = [ops.allgather(comm, level) for level in output.nested_row_lengths()]
        values = ops.allgather(comm, output.flat_values)
        ragged: Any = tf.RaggedTensor  # whose constructors its stub lacks
        return ragged.from_nested_row_lengths(values, lengths, validate=False)
    return ops.allgather(comm, output) if output.shape.rank != 0 else output
