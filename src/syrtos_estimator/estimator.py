"""The class `tf.estimator.Estimator`: a ``model_fn`` that builds a graph, trained on all workers.

Every worker builds the same graph, on its share of each batch; a session of TensorFlow 1 runs it.
Rank 0 reads and writes the files of ``model_dir``, and the others begin with its variables.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from syrtos import settings
from syrtos.comm import world
from syrtos.comm.communicator import ReduceOp
from syrtos.errors import ConfigurationError
from syrtos.keras.tensorflow import patching, reproducible
from syrtos.keras.tensorflow.input import TensorShare
from syrtos_estimator import export, graphs, hooks, inputs, optimizers, sessions, specs
from syrtos_estimator.config import RunConfig, with_model_dir
from syrtos_estimator.specs import EstimatorSpec, ModeKeys

if TYPE_CHECKING:
    from syrtos_estimator.protocols import SavingListener
    from syrtos_estimator.signatures import ServingInputReceiver

Value = TypeVar("Value")
# Features and labels, or a worker's share of them.
Batch = tuple[object, object] | TensorShare

v1 = tf.compat.v1


class Estimator:
    """Trains, evaluates, predicts with and exports the model of ``model_fn``.

    See the documentation of TensorFlow 2.15.

    A batch of ``input_fn`` is one step of all workers. With a strategy in the `RunConfig`, or an
    ``input_context`` that the function asks for, it is a batch of one worker.
    """

    def __init__(
        self,
        model_fn: Callable[..., object],
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: object = None,
        warm_start_from: str | specs.WarmStartSettings | None = None,
    ) -> None:
        """Makes an Estimator; nothing is built yet.

        Raises:
            ConfigurationError: the run has parameter servers.
            ValueError: ``model_dir`` and the config's differ.
        """
        self._workers = world.current()
        if self._workers.servers:
            raise ConfigurationError(
                "Parameter servers (`--ps`) apply Keras optimizers, and an Estimator's graph has"
                " one of TensorFlow 1. Run the script without `--ps`: its workers then make each"
                " update together."
            )
        optimizers.install()
        patching.patch_tensorflow()
        self._model_fn = model_fn
        self._config = with_model_dir(copy.copy(config) if config else RunConfig(), model_dir)
        self._params = copy.deepcopy(params) if params is not None else {}
        self._warm_start_from = warm_start_from
        self._by_rank_0_alone = False
        self._folder_of_rank_0 = ""
        self._is_saved = False
        self._graphs = 0

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
        return lambda features, labels, mode, config=None: self._call_model_fn(
            features, labels, mode
        )

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the newest checkpoint, on every worker; None if there is none."""
        comm = self._workers.comm
        # Of rank 0's folder: the other workers' hosts may not have the file, or not see it yet.
        found = tf.train.latest_checkpoint(self.model_dir) if comm.rank == 0 else None
        found, self._folder_of_rank_0 = self._of_rank_0((found, self.model_dir))
        return found

    def _checkpoint_here(self) -> str | None:
        """Returns the path of the newest checkpoint that this worker can read; None if there is none.

        Raises:
            ConfigurationError: the model has been trained, and its checkpoints are not here.
        """
        # Rank 0 has written them, perhaps to a temporary folder that it alone has made.
        folders = dict.fromkeys(filter(None, (self.model_dir, self._folder_of_rank_0)))
        found = next(filter(None, map(tf.train.latest_checkpoint, folders)), None)
        if found is None and self._is_saved:
            raise ConfigurationError(
                f"`predict` on rank {self._workers.world.rank} finds no checkpoint: rank 0 has"
                f" written those of the training to {self._folder_of_rank_0}, on its host. Give"
                " the Estimator a `model_dir` that all hosts share, or predict on rank 0 alone."
            )
        return found

    def get_variable_names(self) -> list[str]:
        """Returns the names of the variables in the newest checkpoint."""
        return [name for name, _ in tf.train.list_variables(self._checkpoint(None))]

    def get_variable_value(self, name: str) -> npt.NDArray[np.generic]:
        """Returns the value of a variable in the newest checkpoint."""
        return tf.train.load_variable(self._checkpoint(None), name)

    # -- training --------------------------------------------------------------------------------

    def train(
        self,
        input_fn: Callable[..., object],
        hooks: Sequence[object] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[SavingListener] | None = None,
    ) -> Self:
        """Trains until ``input_fn`` ends, for ``steps`` more steps, or to step ``max_steps``.

        ``max_steps`` is a value of the global step.

        Raises:
            ValueError: ``steps`` and ``max_steps`` are both given, or one is not positive.
        """
        self.train_saving(input_fn, hooks, steps, max_steps, saving_listeners)
        return self

    def train_saving(
        self,
        input_fn: Callable[..., object],
        own_hooks: Sequence[object] | None,
        steps: int | None,
        max_steps: int | None,
        listeners: Sequence[SavingListener] | None,
        saved: Callable[[int], None] | None = None,
    ) -> None:
        """Trains as `train` does; calls ``saved`` with each checkpoint's step, on all workers."""
        specs.check_steps(steps, max_steps)
        if max_steps is not None and self.global_step() >= max_steps:
            return
        self._train_in_graph(input_fn, own_hooks, steps, max_steps, listeners, saved)

    def _train_in_graph(
        self,
        input_fn: Callable[..., object],
        own_hooks: Sequence[object] | None,
        steps: int | None,
        max_steps: int | None,
        listeners: Sequence[SavingListener] | None,
        saved: Callable[[int], None] | None,
    ) -> None:
        rank = self._workers.world.rank
        with graphs.new_graph("fit") as graph:
            self._seed(graph)
            v1.train.get_or_create_global_step()
            built = self._build(input_fn, ModeKeys.TRAIN)
            spec, loss, train_op = built.spec, built.loss, built.operation
            # Not over a checkpoint of an earlier call, from which training goes on.
            specs.warm_start(self._warm_start_from if self.latest_checkpoint() is None else None)
            scaffold = sessions.scaffold_of(spec, self._config)
            together = hooks.StopAndSave(
                self._workers,
                self._config,
                self.model_dir,
                scaffold,
                list(listeners or ()),
                saved,
                averages=built.partition is None,
            )
            stop = [v1.train.StopAtStepHook(steps, max_steps)] if steps or max_steps else []
            # Hooks are called in this order. `LogLoss` and those that stop say whether to go on, on
            # which `together`, the last one, makes the workers agree.
            all_hooks = [
                hooks.BeginEqual(self._workers, own_noise=built.partition is None),
                *built.verifying("train_step"),
                hooks.LogLoss(loss, None if rank else self._config.log_step_count_steps),
                *stop,
                *hooks.hooks_of_worker(
                    [
                        *(own_hooks or ()),
                        *(spec.training_hooks or ()),
                        *sessions.hooks_of_chief(self._config, loss, spec, rank),
                    ],
                    rank,
                ),
                together,
            ]
            sessions.train(
                self._workers,
                self._config,
                scaffold,
                all_hooks,
                [built.samples, train_op],
                built.partition,
            )
        self._is_saved = self.latest_checkpoint() is not None

    # -- evaluating ------------------------------------------------------------------------------

    def evaluate(
        self,
        input_fn: Callable[..., object],
        steps: int | None = None,
        hooks: Sequence[object] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Returns metrics by name, over the samples of all workers.

        Among them are ``loss`` (the mean over batches) and ``global_step``. Without a checkpoint
        the variables are as initialized.
        """
        checkpoint = checkpoint_path or self.latest_checkpoint()
        return self._evaluate(input_fn, steps, hooks, checkpoint, name)

    def _evaluate(
        self,
        input_fn: Callable[..., object],
        steps: int | None,
        own_hooks: Sequence[object] | None,
        checkpoint: str | None,
        name: str | None,
    ) -> dict[str, Any]:
        rank = self._workers.world.rank
        with graphs.new_graph("test") as graph:
            self._seed(graph)
            step = v1.train.get_or_create_global_step()
            built = self._build(input_fn, ModeKeys.EVAL)
            spec, loss, metrics = built.spec, built.loss, built.metrics
            # Where workers have batches of their own.
            totals = None if built.partition else hooks.metric_totals()
            found = None
            fetches = [loss, built.active, built.operation]
            all_hooks = [
                hooks.BeginEqual(self._workers),
                *built.verifying("test_step"),
                *hooks.hooks_of_worker([*(own_hooks or ()), *(spec.evaluation_hooks or ())], rank),
            ]
            with sessions.open_checkpoint(
                self._config, spec, checkpoint, all_hooks, rank, built.partition
            ) as session:
                losses = graphs.steps_of(session, self._workers.comm, fetches, totals, steps)
                # Without hooks, which would take these runs for steps, and end the session where
                # the data has ended.
                if totals:
                    totals.reduce(graphs.without_hooks(session), self._workers.comm, ReduceOp.SUM)
                values = {name: value for name, (value, _) in metrics.items()}
                found = graphs.without_hooks(session).run([values, step])
        if found is None:
            raise ValueError(
                "The values of `eval_metric_ops` must not need a further batch: give (value,"
                " update) pairs."
            )
        results = {**found[0], "loss": np.float32(np.mean(losses)), "global_step": found[1]}
        if rank == 0:
            sessions.write_summary(self.eval_dir(name), results)
        return results

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the folder in which the results of evaluations are written."""
        return str(Path(self.model_dir) / (f"eval_{name}" if name else "eval"))

    # -- predicting, exporting -------------------------------------------------------------------

    def predict(
        self,
        input_fn: Callable[..., object],
        predict_keys: str | Sequence[str] | None = None,
        hooks: Sequence[object] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Returns an iterator over predictions for all rows, one by one or batch by batch.

        Every worker that calls it predicts all rows, from the newest checkpoint.

        Raises:
            ConfigurationError: the model has been trained, and its checkpoints are on another host.
            ValueError: ``predict_keys`` names no prediction.
        """
        checkpoint = checkpoint_path or self._checkpoint_here()
        return self._predict(input_fn, predict_keys, hooks, checkpoint, yield_single_examples)

    def _predict(
        self,
        input_fn: Callable[..., object],
        keys: str | Sequence[str] | None,
        own_hooks: Sequence[object] | None,
        checkpoint: str | None,
        single: bool,
    ) -> Iterator[Any]:
        rank = self._workers.world.rank
        with graphs.new_graph() as graph:
            self._seed(graph)
            v1.train.get_or_create_global_step()
            features = self._inputs(input_fn, ModeKeys.PREDICT, all_rows=True)[0]
            spec = self._call_model_fn(features, None, ModeKeys.PREDICT)
            predictions = spec.predictions
            if keys and isinstance(predictions, dict):
                chosen = {
                    name: value
                    for name, value in predictions.items()
                    if name in np.atleast_1d(keys)
                }
                if not chosen:
                    raise ValueError(
                        f"Expected to run at least one of {keys}; there are {list(predictions)}."
                    )
                predictions = chosen
            all_hooks = [
                *hooks.hooks_of_worker(own_hooks, rank),
                *hooks.hooks_of_worker(spec.prediction_hooks, rank),
            ]
            with sessions.open_checkpoint(
                self._config, spec, checkpoint, all_hooks, rank
            ) as session:
                while not session.should_stop():
                    with self._workers.ledger.part("predict"):
                        batch = session.run(predictions)
                    yield from graphs.rows(batch) if single else [batch]

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], ServingInputReceiver] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Writes a saved model under ``export_dir_base``, in a folder named by the time.

        Rank 0 writes it, and all workers get its path.
        """
        checkpoint, comm = self._checkpoint(checkpoint_path), self._workers.comm
        written = ""
        if comm.rank == 0:
            with graphs.new_graph() as graph:
                self._seed(graph)
                v1.train.get_or_create_global_step()
                if serving_input_receiver_fn is None:
                    raise TypeError("An export of a graph needs a `serving_input_receiver_fn`.")
                receiver = serving_input_receiver_fn()
                spec = self._call_model_fn(
                    receiver.features, getattr(receiver, "labels", None), experimental_mode
                )
                written = export.write(
                    spec, receiver, str(export_dir_base), checkpoint, assets_extra, as_text
                )
        return self._of_rank_0(written).encode()

    @contextlib.contextmanager
    def by_rank_0_alone(self) -> Iterator[None]:
        """Context manager: inside, only rank 0 exports, and the others are told later."""
        self._by_rank_0_alone = True
        try:
            yield
        finally:
            self._by_rank_0_alone = False

    def export_savedmodel(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], ServingInputReceiver] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """Calls `export_saved_model`, by the name that it has in TensorFlow 1."""
        del strip_default_attrs
        return self.export_saved_model(
            export_dir_base, serving_input_receiver_fn, assets_extra, as_text, checkpoint_path
        )

    # -- helpers ---------------------------------------------------------------------------------

    def _of_rank_0(self, mine: Value) -> Value:
        """Returns rank 0's value on every worker, unless rank 0 is here alone."""
        return mine if self._by_rank_0_alone else self._workers.comm.broadcast_object(mine)

    def _call_model_fn(self, features: object, labels: object, mode: str) -> EstimatorSpec:
        known = {"labels": labels, "mode": mode, "params": self.params, "config": self.config}
        asked = inputs.arguments_for(self._model_fn, known)
        if labels is not None and "labels" not in asked:
            raise ValueError("`model_fn` does not take labels, but `input_fn` returns labels.")
        with graphs.refusing_calls_of_keras():
            spec = self._model_fn(features=features, **asked)
        if not isinstance(spec, EstimatorSpec):
            raise ValueError("`model_fn` should return an EstimatorSpec.")
        return spec

    def _inputs(self, input_fn: Callable[..., object], mode: str, all_rows: bool = False) -> Batch:
        known = {"params": self._params, "config": self._config}
        return inputs.read(input_fn, mode, inputs.ALL if all_rows else self._how(mode), known)

    def _how(self, mode: str) -> inputs.How:
        distributed = (
            self._config.train_distribute
            if mode == ModeKeys.TRAIN
            else self._config.eval_distribute
        )
        return inputs.OWN if distributed else inputs.BATCH

    def _build(self, input_fn: Callable[..., object], mode: str) -> graphs.BuiltStep:
        """Builds the graph of ``model_fn`` for the next batches of ``input_fn``."""
        batch = self._inputs(input_fn, mode)
        build = functools.partial(self._call_model_fn, mode=mode)
        if isinstance(batch, tuple) and inputs.is_split(input_fn, self._how(mode)):
            return graphs.build_partitioned(self._workers, batch, build, mode)
        return graphs.build_on_own(self._workers, batch, build, mode)

    def _seed(self, graph: tf.Graph) -> None:
        """Gives the graph its seed."""
        # Workers that shuffle alike read the same data. Each graph has another seed, as it has in
        # one process.
        seed = self._config.tf_random_seed
        if seed is None and self._workers.world.size > 1:
            self._graphs += 1
            seed = settings.common_seed() + self._graphs
            reproducible.note_seed_of_graph(seed)
        graph.seed = seed  # pyright: ignore[reportAttributeAccessIssue]  # TensorFlow's stubs lack it

    def _checkpoint(self, given: str | None) -> str:
        found = given or self.latest_checkpoint()
        if found is None:
            raise ValueError(
                f"Could not find trained model in model_dir: {self.model_dir}. Train first."
            )
        return found

    def global_step(self) -> int:
        """Returns the number of updates in the newest checkpoint; 0 if there is none."""
        comm, found = self._workers.comm, self.latest_checkpoint()
        mine = int(tf.train.load_variable(found, "global_step")) if found and comm.rank == 0 else 0
        return int(comm.broadcast_object(mine))
