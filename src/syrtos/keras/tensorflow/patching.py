"""The parts that the patches of Keras 3 and Keras 2 on TensorFlow have in common."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from syrtos.comm import world
from syrtos.keras import fitting
from syrtos.keras.features import asynchronous
from syrtos.keras.files import temporary, write_once
from syrtos.keras.patching import Patch, by_all, replace, replace_everywhere
from syrtos.keras.tensorflow import (
    assignments,
    gradients,
    models,
    reproducible,
    script_gradients,
    tf_internals,
    tf_internals_emission,
    tf_internals_iterators,
    tf_internals_random,
)
from syrtos.keras.tensorflow import files as tf_files
from syrtos.keras.tensorflow.input import iterating
from syrtos.keras.tensorflow.input_policy import giving_whole_batches, ignoring_policy
from syrtos.keras.tensorflow.partition import loop_functions
from syrtos.keras.tensorflow.strategy import is_chosen
from syrtos.keras.tensorflow.variables import TensorFlow
from syrtos.keras.trainer import interrupts, timing

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, R

Loss = TypeVar("Loss")


@functools.cache
def patch_tensorflow() -> None:
    """Installs the patches that do not depend on the version of Keras, once per process."""
    # A strategy of TensorFlow's own would train each worker alone.
    for strategy in (tf.distribute.Strategy, tf.compat.v1.distribute.Strategy):
        replace(strategy, "scope", _refusing_scope)
    tf_internals.watch_functions(assignments.functions_of_step, _call_of_script)
    tf_internals_iterators.watch_iterators(timing.waiting_for_data)
    tf_internals.watch_tracing(timing.tracing)
    tf_internals_emission.make_iterations_take_turns()
    replace(tf.data.Dataset, "__iter__", iterating)
    replace(tf.data.Dataset, "map", reproducible.drawn_by_record)
    replace(tf.random.Generator, "from_non_deterministic_state", reproducible.begun_alike)
    tf_internals_random.draw_from_given_seeds(reproducible.is_seed_of_run)
    tf_internals_random.draw_by_rank(
        TensorFlow().rank_to_seed,
        assignments.current_step,
        lambda: assignments.computes_whole_batch() and not is_chosen(),
    )
    replace(tf.data.Dataset, "cache", tf_files.kept_apart("filename"))
    replace(tf.data.Dataset, "snapshot", tf_files.kept_apart("path"))
    replace(tf.data.Dataset, "save", tf_files.saved_once)
    for name in ("map", "interleave", "batch"):
        replace(tf.data.Dataset, name, reproducible.in_order)
    replace(tf.GradientTape, "__enter__", timing.recording)
    replace(tf.GradientTape, "__exit__", timing.end_computing_after)
    replace(tf.GradientTape, "gradient", timing.as_computing)
    replace(tf.GradientTape, "gradient", script_gradients.reduced_where_made)
    replace(tf, "gradients", script_gradients.reduced_where_made)
    for name in ("jacobian", "batch_jacobian"):
        replace(tf.GradientTape, name, script_gradients.of_own_rows)
    replace(tf.compat.v1.train.Optimizer, "apply_gradients", script_gradients.applied_by_a_replica)
    # A worker reads what it has logged to a folder that it made for itself.
    replace(tempfile, "mkdtemp", temporary.remembering)
    _patch_files()


_MEETING = "Workers that don't call the same are told so at once, and its time is counted apart."


def _call_of_script(function: Any, call: Callable[..., object], args: Any, kwargs: Any) -> object:
    with assignments.calling(function):
        return loop_functions.call_function(function, call, args, kwargs)


def _patch_files() -> None:
    """Patches TensorFlow's functions for files: one worker writes, completely or not at all."""
    # `tf.saved_model.save` and `load`, which Keras calls too.
    replace_everywhere(tf_internals.saved_model_save, "save", write_once.writing("export_dir"))
    replace_everywhere(tf_internals.saved_model_load, "load", write_once.reading("export_dir"))
    # `tf.train.Checkpoint`, its managers, and Keras 2's weights use these: counters and lists of
    # checkpoints go on on each worker.
    replace(tf_internals.TrackableSaver, "save", tf_files.checkpointing)
    replace(tf_internals.TrackableSaver, "restore", write_once.reading("save_path"))
    replace_everywhere(tf_internals.checkpoint_management, "latest_checkpoint", tf_files.latest)
    # Workers log the same numbers: TensorBoard would show them twice.
    replace_everywhere(
        tf_internals.summary_ops, "create_file_writer_v2", tf_files.writer, "create_file_writer"
    )


def _refusing_scope(
    original: Callable[[tf.distribute.Strategy], R],
) -> Callable[[tf.distribute.Strategy], R]:
    """Wraps `Strategy.scope`: with several workers only syrtos's strategy is allowed.

    Another strategy raises a ConfigurationError.
    """

    def scope(self: tf.distribute.Strategy) -> R:
        # TensorFlow's own "none" is no choice of the script's.
        if not type(self).__name__.startswith("_DefaultDistribution"):
            models.check_strategy(self)
        return original(self)

    return scope


# -- losses ----------------------------------------------------------------------------------------


def only_in_strategy_run(original: Callable[[Loss], Loss]) -> Callable[[Loss], Loss]:
    """Wraps a Keras function that scales a loss by replicas: it scales only in `strategy.run`."""

    def scale(value: Loss) -> Loss:
        # There replicas are summed. Elsewhere a worker's loss is that of a whole batch, as in one
        # process.
        return original(value) if gradients.in_strategy_run() else value

    return scale


# -- models ----------------------------------------------------------------------------------------


def agreeing(original: Callable[..., R]) -> Callable[..., R]:
    """Wraps a method that all workers must call together.

    If they call different ones, all get an error that says which rank calls which.
    """

    @functools.wraps(original)
    def method(self: Model, *args: object, **kwargs: object) -> R:
        name = original.__name__
        fitting.call_together(name)
        with (
            giving_whole_batches(models.takes_whole_batches(self, name, world.sharing())),
            ignoring_policy() if name == "predict" else contextlib.nullcontext(),
            contextlib.nullcontext() if name == "fit" else asynchronous.on_all_data(),
        ):
            return original(self, *args, **kwargs)

    return method


def methods_of(trainer: str) -> list[Patch]:
    """Returns the patches of the methods by which a model trains, evaluates and predicts.

    ``trainer``: their class, as `Patch` names it.
    """
    around = (agreeing, timing.part_of_run)
    return [
        Patch(
            trainer,
            "fit",
            by_all(fitting.inside_fit, interrupts.hold_sigint, *around),
            "Whether this process trains decides what a model is built for; all workers take Ctrl-C"
            f" at the same step. {_MEETING}",
        ),
        Patch(trainer, "evaluate", by_all(*around), _MEETING),
        Patch(trainer, "predict", by_all(*around), _MEETING),
    ]
