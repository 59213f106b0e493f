"""The function `tf.estimator.train_and_evaluate`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from syrtos.comm import world
from syrtos_estimator.config import TaskType
from syrtos_estimator.specs import EvalSpec, TrainSpec

if TYPE_CHECKING:
    from syrtos_estimator.estimator import Estimator
    from syrtos_estimator.exporters import Exporter, Metrics

# The metrics of an evaluation, and what the exporters returned for it; None, None before the first
# one.
Evaluation = tuple["Metrics | None", "list[object] | None"]


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> Evaluation:
    """Trains, and evaluates after checkpoints and at the end; all workers take part in both.

    Evaluations begin no more often than every ``throttle_secs``. An evaluator by TF_CONFIG only
    evaluates, each new checkpoint until one has ``max_steps``. A ``ps`` has nothing to do: its
    process ends here.

    Returns:
        The last evaluation's metrics, and the results of the exporters for it.
    """
    if not isinstance(train_spec, TrainSpec) or not isinstance(eval_spec, EvalSpec):
        raise TypeError("`train_spec` must be a TrainSpec, and `eval_spec` an EvalSpec.")
    role = estimator.config.task_type
    if role == TaskType.PS:
        print(
            "syrtos: no parameter servers hold an Estimator's weights; this task of TF_CONFIG has"
            " nothing to do.",
            file=sys.stderr,
        )
        # TensorFlow's call never returned in a `ps`: what follows it in a script is not meant for
        # one.
        sys.exit(0)
    evaluations = _Evaluations(estimator, train_spec, eval_spec)
    if role == TaskType.EVALUATOR:
        return evaluations.follow()
    listeners, steps = train_spec.saving_listeners, train_spec.max_steps
    estimator.train_saving(
        train_spec.input_fn, train_spec.hooks, None, steps, listeners, evaluations.evaluate_if_due
    )
    return evaluations.last()


class _Evaluations:
    """The evaluations of one call of `train_and_evaluate`."""

    def __init__(self, estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
        self._estimator, self._comm = estimator, world.current().comm
        self._end = train_spec.max_steps
        self._spec = eval_spec
        self._result: Evaluation = (None, None)
        self._evaluated: int | None = None
        # So that the first evaluation is not throttled.
        self._since = time.monotonic() - eval_spec.throttle_secs
        self._first = True

    def evaluate_if_due(self, step: int) -> None:
        """Evaluates a checkpoint that was written, if the last evaluation is long enough ago."""
        # The checkpoint before the first step is nothing to evaluate.
        if self._first:
            self._first = False
            return
        waited = time.monotonic() - self._since >= self._spec.throttle_secs
        # Clocks differ, and all workers take part in an evaluation: they have to decide alike.
        if any(self._comm.agree("evaluate?", float(waited))):
            self._evaluate(step)

    def last(self) -> Evaluation:
        """Evaluates the last checkpoint, if that has not been done, and returns the last result."""
        found = self._estimator.latest_checkpoint()
        if found is None:
            return self._result
        step = _step_of(found)
        if step != self._evaluated or (self._end is None and self._spec.exporters):
            self._evaluate(step, final=True)
        return self._result

    def follow(self) -> Evaluation:
        """Evaluates each new checkpoint of another process, until one has ``max_steps``."""
        time.sleep(self._spec.start_delay_secs)
        while True:
            found, started = tf.train.latest_checkpoint(self._estimator.model_dir), time.monotonic()
            if found and _step_of(found) != self._evaluated:
                self._evaluate(_step_of(found), checkpoint=found)
                if self._end and self._evaluated is not None and self._evaluated >= self._end:
                    return self._result
            # At most a minute, for throttling may be asked for by the hour; at least a moment, for
            # it may be 0.
            time.sleep(max(min(self._spec.throttle_secs - (time.monotonic() - started), 60.0), 0.2))

    def _evaluate(self, step: int, final: bool = False, checkpoint: str | None = None) -> None:
        spec, estimator = self._spec, self._estimator
        checkpoint = checkpoint or str(estimator.latest_checkpoint())
        metrics = estimator.evaluate(spec.input_fn, spec.steps, spec.hooks, checkpoint, spec.name)
        is_final = final or (self._end is not None and step >= self._end)
        exported, comm = [], self._comm
        if comm.rank == 0:
            assert isinstance(spec.exporters, tuple)  # `EvalSpec` makes one of whatever it is given
            with estimator.by_rank_0_alone():
                exported = [
                    self._export(one, checkpoint, metrics, is_final) for one in spec.exporters
                ]
        exported = comm.broadcast_object(exported)
        self._result, self._evaluated, self._since = (metrics, exported), step, time.monotonic()

    def _export(
        self, exporter: Exporter, checkpoint: str, metrics: Metrics, is_final: bool
    ) -> object:
        path = str(Path(self._estimator.model_dir) / "export" / exporter.name)
        return exporter.export(self._estimator, path, checkpoint, metrics, is_final)


def _step_of(checkpoint: str) -> int:
    return int(checkpoint.rpartition("-")[2])
