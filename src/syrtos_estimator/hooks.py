"""Hooks around the steps of a session, which act on all workers alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from syrtos.comm.communicator import Communicator, ReduceOp
from syrtos.comm.world import Session
from syrtos.keras.split.shares import SEED_STRIDE

if TYPE_CHECKING:
    from syrtos_estimator.config import RunConfig
    from syrtos_estimator.protocols import (
        GraphSession,
        RunContext,
        RunValues,
        SavingListener,
        Scaffold,
    )

v1 = tf.compat.v1

# These write files: rank 0's do it for all.
_WRITERS = {"CheckpointSaverHook", "SummarySaverHook", "StepCounterHook", "ProfilerHook"}
# Bits of a worker's wish. One number holds both, so that workers agree on them in one exchange.
_STOP, _SAVE = 1.0, 2.0


def hooks_of_worker(hooks: Sequence[object] | None, rank: int) -> list[object]:
    """Returns those hooks of a script that the worker of a rank runs."""
    if rank == 0:
        return list(hooks or ())
    return [
        hook
        for hook in hooks or ()
        if _WRITERS.isdisjoint(base.__name__ for base in type(hook).__mro__)
    ]


class BeginEqual(v1.train.SessionRunHook):
    """Gives all workers rank 0's variables, which it has initialized or read from a checkpoint."""

    def __init__(self, workers: Session, own_noise: bool = False) -> None:
        """Makes the hook.

        Args:
            workers: all of the run.
            own_noise: whether each worker gets its own states of random numbers; else all would
                drop out the same.
        """
        self._workers, self._own_noise = workers, own_noise

    def begin(self) -> None:
        """Makes the operations that assign values, before the graph is final."""
        self._all = GraphVariables(v1.global_variables())

    def before_run(self, run_context: RunContext) -> None:
        """Counts the time from here as that of callbacks."""
        # This is the first of the hooks, and the script's follow.
        self._workers.ledger.become("callbacks")

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Counts the time from here as that of callbacks, as `before_run` does."""
        self._workers.ledger.become("callbacks")

    def after_create_session(self, session: GraphSession, coord: object) -> None:
        """Broadcasts rank 0's variables."""
        comm = self._workers.comm
        variables = self._all.variables
        if comm.size == 1 or not variables:
            return
        # Workers that have built unequal graphs would read each other's values as those of other
        # variables.
        comm.agree(f"variables of a graph: {[f'{v.op.name} {v.shape}' for v in variables]}")
        values = [comm.broadcast(value) for value in self._all.read(session)]
        if self._own_noise:
            seeds = ["seed_generator_state" in variable.op.name for variable in variables]
            # Keras 3's state of random numbers is a pair: the seed, and a counter that all workers
            # raise alike.
            values = [
                value + np.asarray([comm.rank * SEED_STRIDE, 0], value.dtype) if is_seed else value
                for value, is_seed in zip(values, seeds, strict=True)
            ]
        self._all.write(session, values)


class StopAndSave(v1.train.SessionRunHook):
    """Stops and saves at the same step on all workers; rank 0 writes the checkpoints."""

    def __init__(
        self,
        workers: Session,
        config: RunConfig,
        directory: str,
        scaffold: Scaffold,
        listeners: Sequence[SavingListener],
        saved: Callable[[int], None] | None = None,
        averages: bool = False,
    ) -> None:
        """Makes the hook.

        ``saved`` is called on all workers after a checkpoint, with its step. With ``averages``
        moving statistics, which are each worker's own, are averaged before it.
        """
        self._workers = workers
        self._steps = config.save_checkpoints_steps
        self._seconds = config.save_checkpoints_secs
        self._path = str(Path(directory) / "model.ckpt")
        self._scaffold = scaffold
        self._graph_def = config.checkpoint_save_graph_def
        self._listeners = listeners
        self._saved, self._averages = saved, averages
        self._last_step = -1
        self._last_time = 0.0

    def begin(self) -> None:
        """Makes the operations that average moving statistics, before the graph is final."""
        self._step = v1.train.get_global_step()
        for listener in self._listeners:
            listener.begin()
        trained = {id(v) for v in v1.trainable_variables()}
        self._statistics = GraphVariables(
            v
            for v in v1.global_variables()
            if self._averages
            and id(v) not in trained
            and v.dtype.is_floating
            and is_moving(v.op.name)
        )

    def after_create_session(self, session: GraphSession, coord: object) -> None:
        """Saves the state before the first step as a checkpoint too."""
        if self._steps or self._seconds:
            self._save(session, int(session.run(self._step)))

    def before_run(self, run_context: RunContext) -> None:
        """Counts the time from here as that of computing."""
        # This is the last of the hooks: nothing but the step itself comes after it.
        self._workers.ledger.become("compute")

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Agrees with the other workers on whether to stop or save now, and does so."""
        # Asked for together with the update, it could be the number from before.
        step = int(run_context.session.run(self._step))
        mine = _STOP * bool(run_context.stop_requested) + _SAVE * self._is_due(step)
        wishes = [int(wish) for wish in self._workers.comm.agree("stop or save?", mine)]
        if any(wish & int(_SAVE) for wish in wishes) and self._save(run_context.session, step):
            run_context.request_stop()
        if any(wish & int(_STOP) for wish in wishes):
            run_context.request_stop()

    def end(self, session: GraphSession) -> None:
        """Saves the last state as a checkpoint, if that has not been done."""
        step = int(session.run(self._step))
        if step != self._last_step and (self._steps or self._seconds):
            self._save(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def _is_due(self, step: int) -> bool:
        if self._steps:
            return step - self._last_step >= self._steps
        # Rank 0's clock decides for all: the others learn of its wish in the exchange that follows.
        elapsed = time.monotonic() - self._last_time
        return bool(self._seconds) and self._workers.world.rank == 0 and elapsed >= self._seconds

    def _save(self, session: GraphSession, step: int) -> bool:
        """Saves a checkpoint, and returns whether a listener wants training to stop."""
        self._last_step, self._last_time = step, time.monotonic()
        comm = self._workers.comm
        # Each worker has added its own samples alone to moving statistics.
        self._statistics.reduce(session, comm, ReduceOp.MEAN)
        for listener in self._listeners:
            listener.before_save(session, step)
        if comm.rank == 0:
            with self._workers.ledger.span("checkpoint"):
                saver = self._scaffold.saver
                assert saver is not None  # the session has made one
                saver.save(session, self._path, global_step=step, write_meta_graph=self._graph_def)
        # Others may read the file as soon as they go on.
        comm.agree("checkpoint is written")
        # On all workers: a listener may evaluate.
        wishes = [bool(listener.after_save(session, step)) for listener in self._listeners]
        stop = any(comm.agree("stop after saving?", float(any(wishes))))
        if self._saved:
            self._saved(step)
        return stop


class LogLoss(v1.train.SessionRunHook):
    """Logs the loss every ``every`` steps, if any, and stops all workers if it is not a number."""

    def __init__(self, loss: tf.Tensor, every: int | None) -> None:
        self._loss = loss
        self._every = every
        self._seen = 0
        self._since = time.monotonic()

    def before_run(self, run_context: RunContext) -> object:
        """Returns the request for the loss."""
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Logs the loss.

        Raises:
            NanLossDuringTrainingError: the loss is not a number.
        """
        loss = float(run_values.results)
        if math.isnan(loss):
            raise v1.train.NanLossDuringTrainingError
        if self._every and self._seen % self._every == 0:
            now = time.monotonic()
            v1.logging.info(
                "loss = %s, after %d steps (%.3f sec)", loss, self._seen, now - self._since
            )
            self._since = now
        self._seen += 1


class GraphVariables:
    """Variables of the graph that is being built, to be read and set in its sessions."""

    def __init__(self, variables: Iterable[tf.Variable]) -> None:
        self.variables = list(variables)
        # Placeholders, because a graph is final once it runs: an `assign` of an array would add a
        # constant to it.
        self._given = [v1.placeholder(v.dtype.base_dtype, v.shape) for v in self.variables]
        pairs = zip(self.variables, self._given, strict=True)
        self._assign = tf.group(*(v1.assign(variable, value) for variable, value in pairs))

    def read(self, session: GraphSession) -> list[npt.NDArray[np.generic]]:
        """Returns the values."""
        return session.run(self.variables)

    def write(self, session: GraphSession, values: Sequence[npt.ArrayLike]) -> None:
        """Sets the values."""
        session.run(self._assign, dict(zip(self._given, values, strict=True)))

    def reduce(self, session: GraphSession, comm: Communicator, op: ReduceOp) -> None:
        """Replaces the values by their reduction over workers."""
        if comm.size > 1 and self.variables:
            self.write(
                session, [comm.allreduce(np.asarray(value), op) for value in self.read(session)]
            )


def metric_totals() -> GraphVariables:
    """Returns the local variables of metrics, whose sum over the workers counts all samples."""
    found = {id(v): v for v in v1.local_variables() if v.dtype.is_floating or v.dtype.is_integer}
    return GraphVariables(found.values())


def is_moving(name: str) -> bool:
    """Returns whether a name is that of a moving statistic in Keras or `tf.compat.v1.layers`."""
    # The last part alone: an optimizer's averages are equal on all workers already.
    return "moving_" in name.rsplit("/", 1)[-1]
