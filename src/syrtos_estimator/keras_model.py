"""The function `tf.keras.estimator.model_to_estimator`.

It gives a Keras model, which `fit` trains, the calls of an Estimator.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.dialects import keras2
from syrtos.keras.tensorflow import input as pipelines
from syrtos.keras.tensorflow import tf_internals
from syrtos_estimator import graphs, inputs, sessions
from syrtos_estimator.config import RunConfig
from syrtos_estimator.estimator import Estimator
from syrtos_estimator.export import new_folder
from syrtos_estimator.specs import ModeKeys, check_steps

if TYPE_CHECKING:
    from syrtos.dialects.protocols import DialectOptimizer
    from syrtos_estimator.protocols import SavingListener
    from syrtos_estimator.signatures import ServingInputReceiver

keras = keras2.keras()


class _Layer(Protocol):
    """A layer of Keras."""

    @property
    def name(self) -> str:
        """The layer's name."""
        ...


class _Model(Protocol):
    """A compiled model of Keras 2 or Keras 3."""

    @property
    def optimizer(self) -> DialectOptimizer:
        """The optimizer that `compile` was given."""
        ...

    @property
    def layers(self) -> Sequence[_Layer]:
        """The layers, without those inside of others."""
        ...

    @property
    def inputs(self) -> Sequence[tf.TensorSpec]:
        """The symbolic inputs, which have shapes and dtypes."""
        ...

    def __call__(self, inputs: object, training: bool | None = None) -> object:
        """Returns the outputs."""
        ...

    def fit(self, x: tf.data.Dataset, *, verbose: int, callbacks: Sequence[object]) -> object:
        """Trains."""
        ...

    def evaluate(
        self, x: tf.data.Dataset, *, verbose: int, return_dict: bool
    ) -> Mapping[str, float]:
        """Returns the loss and metrics by name."""
        ...


def model_to_estimator(
    keras_model: _Model | None = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, object] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = None,
    metric_names_map: dict[str, str] | None = None,
    export_outputs: object = None,
) -> KerasEstimator:
    """Returns an Estimator of a compiled Keras model.

    Raises:
        ValueError: not exactly one of model and path is given, the model is not compiled, or there
            are ``export_outputs``.
    """
    if (keras_model is None) == (keras_model_path is None):
        raise ValueError(
            "Either `keras_model` or `keras_model_path` needs to be provided, and not both."
        )
    if export_outputs is not None:
        raise ValueError(
            "`export_outputs` are signatures of a graph; a Keras model is exported with its own."
        )
    del checkpoint_format
    model = keras_model or keras.models.load_model(keras_model_path, custom_objects)
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "The given Keras model has not been compiled yet. Call `compile` on it first."
        )
    return KerasEstimator(model, model_dir, config, metric_names_map or {})


class KerasEstimator(Estimator):
    """Trains by `fit`, and keeps checkpoints in ``model_dir``.

    A checkpoint holds the model, its optimizer and the global step.
    """

    def __init__(
        self,
        model: _Model,
        model_dir: str | os.PathLike[str] | None,
        config: RunConfig | None,
        names: Mapping[str, str],
    ) -> None:
        super().__init__(_no_graph, model_dir, config)
        self._model = model
        self._names = names
        self._step = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="global_step")
        self._saved = tf.train.Checkpoint(
            model=model, optimizer=model.optimizer, global_step=self._step
        )
        self._loaded: str | None = None
        self._manager = tf.train.CheckpointManager(
            self._saved,
            self.model_dir,
            max_to_keep=self._config.keep_checkpoint_max or None,
            checkpoint_name="model.ckpt",
        )

    def train_saving(
        self,
        input_fn: Callable[..., object],
        own_hooks: Sequence[object] | None,
        steps: int | None,
        max_steps: int | None,
        listeners: Sequence[SavingListener] | None,
        saved: Callable[[int], None] | None = None,
    ) -> None:
        """Trains by `fit`, and calls ``saved`` with the step of each checkpoint.

        See `Estimator.train_saving`.
        """
        _check_no_hooks(own_hooks, listeners)
        check_steps(steps, max_steps)
        self._restore(self.latest_checkpoint())
        left = max_steps - int(self._step) if max_steps is not None else steps
        if left is not None and left <= 0:
            return
        dataset = self._dataset(input_fn, ModeKeys.TRAIN)
        if saved:
            saved(int(self._step))
        self._model.fit(
            dataset if left is None else dataset.take(left),
            verbose=0,
            callbacks=[_Checkpoints(self._workers, self, saved)],
        )
        if self._loaded is None or not self._loaded.endswith(f"-{int(self._step)}"):
            self.save()
            if saved:
                saved(int(self._step))

    def step_done(self) -> int:
        """Counts a step, and returns the number of steps so far."""
        self._step.assign_add(1)
        return int(self._step)

    def save(self) -> None:
        """Writes a checkpoint, on rank 0."""
        if self._workers.world.rank == 0:
            self._loaded = self._manager.save(checkpoint_number=int(self._step))
        self._loaded = self._workers.comm.broadcast_object(self._loaded)

    def evaluate(
        self,
        input_fn: Callable[..., object],
        steps: int | None = None,
        hooks: Sequence[object] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates by the model's `evaluate`; see `Estimator.evaluate`."""
        _check_no_hooks(hooks)
        self._restore(self._checkpoint(checkpoint_path))
        dataset = self._dataset(input_fn, ModeKeys.EVAL)
        found = self._model.evaluate(
            dataset if steps is None else dataset.take(steps), verbose=0, return_dict=True
        )
        results: dict[str, Any] = {
            self._names.get(str(key), str(key)): np.float32(value) for key, value in found.items()
        }
        results["global_step"] = int(self._step)
        if self._workers.world.rank == 0:
            sessions.write_summary(self.eval_dir(name), results)
        return results

    def predict(
        self,
        input_fn: Callable[..., object],
        predict_keys: str | Sequence[str] | None = None,
        hooks: Sequence[object] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions by the names of the layers that make them; see `Estimator.predict`."""
        _check_no_hooks(hooks)
        self._restore(self._checkpoint(checkpoint_path))
        # A `Sequential` of Keras 3 has no names of its outputs.
        names = getattr(self._model, "output_names", None) or [self._model.layers[-1].name]
        for batch in self._dataset(input_fn, ModeKeys.PREDICT):
            features = batch[0] if isinstance(batch, tuple) else batch
            outputs = tf.nest.flatten(self._model(features, training=False))
            values = {name: out.numpy() for name, out in zip(names, outputs, strict=True)}
            values = {
                name: out
                for name, out in values.items()
                if not predict_keys or name in np.atleast_1d(predict_keys)
            }
            yield from graphs.rows(values) if yield_single_examples else [values]

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], ServingInputReceiver] | None = None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Writes the model with the signature of its inputs, in a folder named by the time.

        Receivers aren't needed.
        """
        del serving_input_receiver_fn, assets_extra, as_text, experimental_mode
        self._restore(self._checkpoint(checkpoint_path))
        written = ""
        if self._workers.world.rank == 0:
            written = str(new_folder(Path(str(export_dir_base))))
            archive = keras.export.ExportArchive()
            archive.track(self._model)
            fed = [tf.TensorSpec(one.shape, one.dtype) for one in self._model.inputs]
            archive.add_endpoint("serving_default", self._answer, fed)
            archive.write_out(written)
        return self._of_rank_0(written).encode()

    # -- helpers ---------------------------------------------------------------------------------

    def _answer(self, first: tf.Tensor, *others: tf.Tensor) -> object:
        # A signature gives each input as an argument of its own, and a model takes all of them as
        # one.
        return self._model([first, *others] if others else first)

    def _dataset(self, input_fn: Callable[..., object], mode: str) -> tf.data.Dataset:
        known = {"mode": mode, "params": self._params, "config": self._config}
        found = input_fn(**inputs.arguments_for(input_fn, known))
        if not isinstance(found, tf.data.Dataset):
            once = tf.data.Dataset.from_tensors(found)
            found = once.repeat() if mode == ModeKeys.TRAIN else once
        place = self._workers.world
        # Under a strategy given to the Estimator a batch is one worker's; else `fit` splits the
        # batches.
        if mode == ModeKeys.TRAIN and self._config.train_distribute and place.size > 1:
            mine = found.shard(place.size, place.rank)
            return tf_internals.shared_out(pipelines.worker_batches(mine, self._workers.input_comm))
        return found

    def _restore(self, path: str | None) -> None:
        if path is not None and path != self._loaded:
            self._saved.restore(path).expect_partial()
            self._loaded = path

    def global_step(self) -> int:
        """Returns the number of updates so far."""
        return int(self._step)


class _Checkpoints(keras.callbacks.Callback):
    """Counts steps, and saves when the settings say so."""

    def __init__(
        self, workers: Session, estimator: KerasEstimator, saved: Callable[[int], None] | None
    ) -> None:
        super().__init__()
        self._workers, self._estimator = workers, estimator
        self._saved = saved
        self._last = estimator.global_step()
        self._since = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Counts a step and saves if that is due, at the same step on all workers."""
        step = self._estimator.step_done()
        if self._is_due(step):
            self._last, self._since = step, time.monotonic()
            self._estimator.save()
            if self._saved:
                self._saved(step)

    def _is_due(self, step: int) -> bool:
        config = self._estimator.config
        if config.save_checkpoints_steps:
            return step - self._last >= config.save_checkpoints_steps
        seconds = config.save_checkpoints_secs
        late = bool(seconds) and time.monotonic() - self._since >= seconds
        # Clocks differ, and a checkpoint is an exchange: one worker's wish is that of all.
        return any(self._workers.comm.agree("save?", float(late)))


def _check_no_hooks(*given: Sequence[object] | None) -> None:
    if any(given):
        raise ValueError(
            "Hooks and saving listeners work on sessions, and the Estimator of a Keras model has"
            " none: use callbacks with `model.fit`."
        )


def _no_graph(features: object, labels: object, mode: str) -> NoReturn:
    raise TypeError("The Estimator of a Keras model has no `model_fn`.")
