"""The class `tf.estimator.Estimator`: a ``model_fn`` that builds a graph, trained on all workers.

Every worker builds the same graph, on its share of each batch; a session of TensorFlow 1 runs it. Rank 0 reads and
writes the files of ``model_dir``, and the others begin with its variables.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf

from syrtos import settings
from syrtos.comm import world
from syrtos.comm.communicator import ReduceOp
from syrtos.dialects.estimator import export, graphs, hooks, inputs, optimizers, specs
from syrtos.dialects.estimator.config import RunConfig
from syrtos.dialects.estimator.first_batch import (
    Comparing,
    Known,
    NeedsStaticRows,
    has_static_rows,
    of_any_rows,
    tell_once,
)
from syrtos.dialects.estimator.specs import EstimatorSpec, ModeKeys
from syrtos.errors import ConfigurationError
from syrtos.keras.split import shares
from syrtos.keras.split.checks import Checks
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.tensorflow import patching, reduction, tf_internals
from syrtos.keras.tensorflow.input import Share

v1: Any = tf.compat.v1


class Estimator:
    """Trains, evaluates, predicts with and exports the model of ``model_fn``; see the documentation of TensorFlow 2.15.

    A batch of ``input_fn`` is one step of all workers. With a strategy in the `RunConfig`, or an ``input_context`` that
    the function asks for, it is a batch of one worker.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: RunConfig | None = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        """Makes an Estimator; nothing is built yet.

        Raises:
            ConfigurationError: the run has parameter servers.
            ValueError: ``model_dir`` and the config's differ.
        """
        if world.current().servers:
            raise ConfigurationError(
                "Parameter servers (`--ps`) apply Keras optimizers, and an Estimator's graph has one of TensorFlow 1. Run the script without "
                "`--ps`: its workers then make each update together."
            )
        optimizers.install()
        patching.patch_tensorflow()
        self._model_fn = model_fn
        self._config = _with_model_dir(copy.copy(config) if config else RunConfig(), model_dir)
        self._params = copy.deepcopy(params) if params is not None else {}
        self._warm_start_from = warm_start_from
        self._by_rank_0_alone = False
        self._graphs = 0
        self._known: dict[str, Known] = {}
        self._is_relaxed = self._keeps_static = False  # whether `model_fn` is given no static number of rows; needs one

    # -- facts -----------------------------------------------------------------------------------

    @property
    def model_dir(self) -> str:
        """The folder of all files that are written."""
        assert self._config.model_dir is not None
        return self._config.model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of the settings."""
        return copy.copy(self._config)

    @property
    def params(self) -> Any:
        """A copy of the ``params`` of ``model_fn``."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The ``model_fn``, with ``params`` and ``config`` bound."""
        return lambda features, labels, mode, config=None: self._call_model_fn(features, labels, mode)

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the newest checkpoint, on every worker; None if there is none."""
        comm = world.current().comm
        found = tf.train.latest_checkpoint(self.model_dir) if comm.rank == 0 else None
        return self._told_to_all(found)

    def get_variable_names(self) -> list[str]:
        """Returns the names of the variables in the newest checkpoint."""
        return [name for name, _ in tf.train.list_variables(self._checkpoint(None))]

    def get_variable_value(self, name: str) -> Any:
        """Returns the value of a variable in the newest checkpoint."""
        return tf.train.load_variable(self._checkpoint(None), name)

    # -- training --------------------------------------------------------------------------------

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> Self:
        """Trains until ``input_fn`` ends, for ``steps`` more steps, or until the global step is ``max_steps``.

        Raises:
            ValueError: ``steps`` and ``max_steps`` are both given, or one is not positive.
        """
        self.train_saving(input_fn, hooks, steps, max_steps, saving_listeners)
        return self

    def train_saving(
        self,
        input_fn: Callable[..., Any],
        own_hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        listeners: Sequence[Any] | None,
        saved: Callable[[int], None] | None = None,
    ) -> None:
        """Trains as `train` does, and calls ``saved`` with the step of each checkpoint, on all workers."""
        check_steps(steps, max_steps)
        if max_steps is not None and self.global_step() >= max_steps:
            return
        self._for_any_rows(lambda: self._train_in_graph(input_fn, own_hooks, steps, max_steps, listeners, saved))

    def _train_in_graph(
        self, input_fn: Any, own_hooks: Any, steps: int | None, max_steps: int | None, listeners: Any, saved: Any
    ) -> None:
        with graphs.new_graph("fit") as graph:
            seed = self._seed(graph)
            step = v1.train.get_or_create_global_step()
            batch = self._with_any_rows(self._inputs(input_fn, ModeKeys.TRAIN), input_fn, ModeKeys.TRAIN)
            with graphs.GraphScope(world.current(), batch, training=True).as_current_step() as scope:
                if seed is not None:  # the same data, and other noise on it
                    v1.set_random_seed(seed + shares.SEED_STRIDE * world.current().world.rank)
                features, labels = scope.data
                before = reduction.count_reductions()
                with tf_internals.assignments_of_keras() as assigned:
                    spec = self._call_model_fn(features, labels, ModeKeys.TRAIN)
                graphs.check_reduced(reduction.count_reductions() - before)
                loss, train_op = graphs.over_all(scope, spec.loss), tf.group(graphs.operation(spec.train_op), *assigned)
            specs.warm_start(self._warm_start_from if self.latest_checkpoint() is None else None)
            scaffold = self._scaffold(spec)
            together = hooks.Together(self._config, self.model_dir, scaffold, list(listeners or ()), saved)
            stop = [v1.train.StopAtStepHook(steps, max_steps)] if steps or max_steps else []
            all_hooks = [
                hooks.BeginEqual(own_noise=True),
                *self._comparing(scope, input_fn, loss, train_op),
                hooks.LogLoss(loss, self._config.log_step_count_steps),
                *stop,
                *hooks.hooks_of_worker(
                    [*(own_hooks or ()), *(spec.training_hooks or ()), *self._writers(loss, step, spec)]
                ),
                together,
            ]
            self._run_steps(scaffold, all_hooks, [scope.samples, train_op])

    def _run_steps(self, scaffold: Any, all_hooks: list[Any], fetches: list[Any]) -> None:
        reads = self.model_dir if world.current().world.rank == 0 else None
        creator = v1.train.ChiefSessionCreator(scaffold, config=self._config.session_config, checkpoint_dir=reads)
        with v1.train.MonitoredSession(creator, all_hooks) as session:
            graphs.train(session, fetches)

    def _writers(self, loss: Any, step: Any, spec: EstimatorSpec) -> list[Any]:
        """Returns the hooks that only rank 0 has: those that write files, and the chief's."""
        if world.current().world.rank:
            return []
        v1.summary.scalar("loss", loss)
        found = [*(spec.training_chief_hooks or ())]
        if self._config.log_step_count_steps:
            found.append(v1.train.StepCounterHook(self._config.log_step_count_steps, output_dir=self.model_dir))
        if self._config.save_summary_steps:
            merged = v1.summary.merge_all()
            found.append(
                v1.train.SummarySaverHook(self._config.save_summary_steps, output_dir=self.model_dir, summary_op=merged)
            )
        return found

    # -- evaluating ------------------------------------------------------------------------------

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Returns metrics by name, over the samples of all workers.

        Among them are ``loss`` (the mean over batches) and ``global_step``. Without a checkpoint the variables are as
        initialized.
        """
        checkpoint = checkpoint_path or self.latest_checkpoint()
        return self._for_any_rows(lambda: self._evaluate(input_fn, steps, hooks, checkpoint, name))

    def _evaluate(
        self, input_fn: Any, steps: int | None, own_hooks: Any, checkpoint: str | None, name: str | None
    ) -> dict[str, Any]:
        with graphs.new_graph("test") as graph:
            self._seed(graph)
            step = v1.train.get_or_create_global_step()
            batch = self._with_any_rows(self._inputs(input_fn, ModeKeys.EVAL), input_fn, ModeKeys.EVAL)
            with graphs.GraphScope(world.current(), batch, training=False).as_current_step() as scope:
                features, labels = scope.data
                spec = self._call_model_fn(features, labels, ModeKeys.EVAL)
                metrics = graphs.metrics_of(spec)
                loss = graphs.over_all(scope, spec.loss)
            totals = hooks.metric_totals()
            found = None
            fetches = [loss, scope.active, tf.group(*(update for _, update in metrics.values()))]
            all_hooks = [
                hooks.BeginEqual(),
                *self._comparing(scope, input_fn, loss, metrics=metrics),
                *hooks.hooks_of_worker([*(own_hooks or ()), *(spec.evaluation_hooks or ())]),
            ]
            with self._restore_checkpoint(spec, checkpoint, all_hooks) as session:
                losses = graphs.steps_of(session, fetches, totals, steps)
                totals.reduce(graphs.without_hooks(session), ReduceOp.SUM)
                values = {name: value for name, (value, _) in metrics.items()}
                found = graphs.without_hooks(session).run([values, step])
        if found is None:
            raise ValueError(
                "The values of `eval_metric_ops` must not need a further batch: give (value, update) pairs."
            )
        results = {**found[0], "loss": np.float32(np.mean(losses)), "global_step": found[1]}
        self._write_summary(results, name)
        return results

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the folder in which the results of evaluations are written."""
        return str(Path(self.model_dir) / (f"eval_{name}" if name else "eval"))

    def _write_summary(self, results: dict[str, Any], name: str | None) -> None:
        if world.current().world.rank:
            return
        summary = v1.Summary()
        for key, value in results.items():
            if key != "global_step" and np.ndim(value) == 0:
                summary.value.add(tag=key, simple_value=float(value))
        with tf.Graph().as_default(), v1.summary.FileWriter(self.eval_dir(name)) as writer:
            writer.add_summary(summary, int(results["global_step"]))
        values = ", ".join(f"{key} = {value}" for key, value in sorted(results.items()))
        v1.logging.info("Saving dict for global step %d: %s", int(results["global_step"]), values)

    # -- predicting, exporting -------------------------------------------------------------------

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Returns an iterator over predictions for all rows, one by one or batch by batch.

        Every worker that calls it predicts all rows, from the checkpoint that it finds.

        Raises:
            ValueError: ``predict_keys`` names no prediction.
        """
        checkpoint = checkpoint_path or tf.train.latest_checkpoint(self.model_dir)
        return self._predict(input_fn, predict_keys, hooks, checkpoint, yield_single_examples)

    def _predict(self, input_fn: Any, keys: Any, own_hooks: Any, checkpoint: str | None, single: bool) -> Iterator[Any]:
        with graphs.new_graph() as graph:
            self._seed(graph)
            v1.train.get_or_create_global_step()
            features = self._inputs(input_fn, ModeKeys.PREDICT, whole=True)[0]
            spec = self._call_model_fn(features, None, ModeKeys.PREDICT)
            predictions = spec.predictions
            if keys and isinstance(predictions, dict):
                predictions = {name: value for name, value in predictions.items() if name in np.atleast_1d(keys)}
                if not predictions:
                    raise ValueError(f"Expected to run at least one of {keys}; there are {list(spec.predictions)}.")
            all_hooks = [*hooks.hooks_of_worker(own_hooks), *hooks.hooks_of_worker(spec.prediction_hooks)]
            with self._restore_checkpoint(spec, checkpoint, all_hooks) as session:
                while not session.should_stop():
                    with world.current().ledger.part("predict"):
                        batch = session.run(predictions)
                    yield from graphs.rows(batch) if single else [batch]

    def export_saved_model(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: dict[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Writes a saved model under ``export_dir_base``, in a folder named by the time.

        Rank 0 writes it, and all workers get its path.
        """
        checkpoint, comm = self._checkpoint(checkpoint_path), world.current().comm
        written = ""
        if comm.rank == 0:
            with graphs.new_graph() as graph:
                self._seed(graph)
                v1.train.get_or_create_global_step()
                receiver = serving_input_receiver_fn()
                spec = self._call_model_fn(receiver.features, getattr(receiver, "labels", None), experimental_mode)
                written = export.write(spec, receiver, str(export_dir_base), checkpoint, assets_extra, as_text)
        return self._told_to_all(written).encode()

    @contextlib.contextmanager
    def by_rank_0_alone(self) -> Iterator[None]:
        """Context manager: inside, only rank 0 exports, and the others are told later."""
        self._by_rank_0_alone = True
        try:
            yield
        finally:
            self._by_rank_0_alone = False

    def export_savedmodel(
        self, export_dir_base: Any, serving_input_receiver_fn: Any, assets_extra: Any = None, as_text: bool = False,
        checkpoint_path: str | None = None, strip_default_attrs: bool = False,
    ) -> bytes:  # fmt: skip
        """Calls `export_saved_model`, by the name that it has in TensorFlow 1."""
        del strip_default_attrs
        return self.export_saved_model(
            export_dir_base, serving_input_receiver_fn, assets_extra, as_text, checkpoint_path
        )

    # -- helpers ---------------------------------------------------------------------------------

    def _told_to_all(self, mine: Any) -> Any:
        """Returns rank 0's value on every worker, unless rank 0 is here alone."""
        return mine if self._by_rank_0_alone else world.current().comm.broadcast_object(mine)

    def _call_model_fn(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        is_relaxed, self._is_relaxed = self._is_relaxed, False
        known = {"labels": labels, "mode": mode, "params": self.params, "config": self.config}
        asked = inputs.called_with(self._model_fn, known)
        if labels is not None and "labels" not in asked:
            raise ValueError("`model_fn` does not take labels, but `input_fn` returns labels.")
        try:
            with graphs.refusing_calls_of_keras():
                spec = self._model_fn(features=features, **asked)
        except Exception as error:
            if is_relaxed:
                raise NeedsStaticRows from error
            raise
        if not isinstance(spec, EstimatorSpec):
            raise ValueError("`model_fn` should return an EstimatorSpec.")
        return spec

    def _inputs(self, input_fn: Any, mode: str, whole: bool = False) -> tuple[Any, Any] | Share:
        known = {"params": self._params, "config": self._config}
        return inputs.read(input_fn, mode, inputs.ALL if whole else self._how(mode), known)

    def _how(self, mode: str) -> inputs.How:
        distributed = self._config.train_distribute if mode == ModeKeys.TRAIN else self._config.eval_distribute
        return inputs.OWN if distributed else inputs.SHARE

    def _with_any_rows(self, batch: Any, input_fn: Any, mode: str) -> Any:
        """Returns a batch whose tensors can be fed with the rows of all workers, where it is split and `model_fn` allows that."""
        is_split = isinstance(batch, Share) and inputs.is_split(input_fn, self._how(mode))
        self._is_relaxed = is_split and not self._keeps_static and has_static_rows(batch.data)
        return batch._replace(data=of_any_rows(batch.data)) if self._is_relaxed else batch

    def _for_any_rows(self, run: Callable[[], Any]) -> Any:
        """Runs a graph; once more, as it was, where `model_fn` can't be built without a static number of rows."""
        try:
            return run()
        except NeedsStaticRows:
            self._keeps_static = True
            tell_once(world.current(), "`model_fn` is not compared with one process: it needs a static number of rows.")
            return run()

    def _comparing(
        self, scope: graphs.GraphScope, input_fn: Any, loss: Any, train_op: Any = None, metrics: Any = None
    ) -> list[Comparing]:
        """Returns the hook that compares steps with those of one process, where batches are split."""
        mode, step = (ModeKeys.TRAIN, "train_step") if scope.training else (ModeKeys.EVAL, "test_step")
        if self._keeps_static or not inputs.is_split(input_fn, self._how(mode)):
            return []
        known = self._known.setdefault(step, (SplitPlan(), Checks()))
        return [Comparing(scope, known, step, loss, train_op, metrics, self._config.session_config)]

    def _seed(self, graph: Any) -> int | None:
        """Gives the graph its seed, and returns it."""
        # all workers must read the same data
        seed = self._config.tf_random_seed
        if seed is None and world.current().world.size > 1:
            self._graphs += 1  # another for each, as without workers
            seed = settings.common_seed() + self._graphs
        graph.seed = seed
        return seed

    def _scaffold(self, spec: EstimatorSpec) -> Any:
        scaffold = spec.scaffold or v1.train.Scaffold()
        if scaffold.saver is None and not v1.get_collection(v1.GraphKeys.SAVERS):
            keep, hours = self._config.keep_checkpoint_max, self._config.keep_checkpoint_every_n_hours
            saver = v1.train.Saver(
                max_to_keep=keep, keep_checkpoint_every_n_hours=hours, defer_build=True, save_relative_paths=True
            )
            v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
        return scaffold

    def _restore_checkpoint(self, spec: EstimatorSpec, checkpoint: str | None, all_hooks: list[Any]) -> Any:
        """Returns a session with the variables of a checkpoint.

        Rank 0 must be able to read the checkpoint. With `BeginEqual` among the hooks the others need not.
        """
        equal = any(isinstance(hook, hooks.BeginEqual) for hook in all_hooks)
        path = checkpoint if world.current().world.rank == 0 or not equal else None
        creator = v1.train.ChiefSessionCreator(
            spec.scaffold or v1.train.Scaffold(),
            config=self._config.session_config,
            checkpoint_filename_with_path=path,
        )
        return v1.train.MonitoredSession(creator, all_hooks)

    def _checkpoint(self, given: str | None) -> str:
        found = given or self.latest_checkpoint()
        if found is None:
            raise ValueError(f"Could not find trained model in model_dir: {self.model_dir}. Train first.")
        return found

    def global_step(self) -> int:
        """Returns the number of updates in the newest checkpoint; 0 if there is none."""
        comm, found = world.current().comm, self.latest_checkpoint()
        mine = int(tf.train.load_variable(found, "global_step")) if found and comm.rank == 0 else 0
        return int(comm.broadcast_object(mine))


def check_steps(steps: int | None, max_steps: int | None) -> None:
    """Checks the two ways of limiting steps.

    Raises:
        ValueError: both are given, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise ValueError("Can not provide both steps and max_steps.")
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None and value <= 0:
            raise ValueError(f"Must specify {name} > 0, given: {value}.")


def _with_model_dir(config: RunConfig, model_dir: Any) -> RunConfig:
    """Returns the config with the folder that was given, or else with one that rank 0 has made for all workers.

    Raises:
        ValueError: ``model_dir`` and the config's differ.
    """
    if model_dir is not None and config.model_dir not in (None, str(model_dir)):
        raise ValueError(
            f"`model_dir` is given as {model_dir}, and the RunConfig has {config.model_dir}. Give one of them."
        )
    chosen = str(model_dir) if model_dir is not None else config.model_dir
    comm = world.current().comm
    if chosen is None:
        made = tempfile.mkdtemp() if comm.rank == 0 else None
        chosen = comm.broadcast_object(made)
    config.model_dir = chosen
    return config
