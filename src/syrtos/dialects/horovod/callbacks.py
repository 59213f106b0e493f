"""The callbacks of `hvd.callbacks`, for Keras 3 and Keras 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from syrtos.comm.communicator import ReduceOp
from syrtos.dialects import keras2
from syrtos.dialects.horovod import basics, elastic
from syrtos.dialects.horovod.basics import comm_of, global_process_set
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.dialects.protocols import DialectOptimizer, DialectVariable

_Callback = keras2.keras().callbacks.Callback
_ModelCheckpoint = keras2.keras().callbacks.ModelCheckpoint


class _StateWithBatch(Protocol):
    """An elastic state that was made with `batch`."""

    batch: int


class _StateWithEpoch(Protocol):
    """An elastic state that was made with `epoch`."""

    epoch: int


class BroadcastGlobalVariablesCallback(_Callback):
    """Gives all workers the root's model and optimizer before the first step.

    A model that has no weights yet is broadcast after the first step.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Iterable[DialectVariable] | None = None,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local = {state.identity(v) for v in local_variables or []}

    def register_local_var(self, var: DialectVariable) -> None:
        """Excludes a variable from the broadcast: each worker keeps its own."""
        self._local.add(state.identity(var))

    def on_train_begin(self, logs: object = None) -> None:
        """Broadcasts if all workers have weights already."""
        comm = comm_of(global_process_set)
        # All have to broadcast together, and a model may have its weights on some workers alone.
        if min(
            comm.agree(
                "hvd.callbacks: weights before the first step?",
                float(bool(state.variables_in(self.model))),
            )
        ):
            self._broadcast()

    def on_batch_end(self, batch: int, logs: object = None) -> None:
        if not self.broadcast_done:
            self._broadcast()

    on_train_batch_end = on_batch_end

    def _broadcast(self) -> None:
        found = [v for v in state.variables_in(self.model) if state.identity(v) not in self._local]
        comm = comm_of(global_process_set)
        mine = self.model.optimizer and state.variables_of(self.model.optimizer)
        # An optimizer may be built on some workers alone: then the others have nothing to
        # overwrite.
        if len(set(comm.agree("hvd.callbacks: variables of the optimizer", len(mine or [])))) == 1:
            found += [v for v in mine or [] if state.identity(v) not in self._local]
        state.broadcast(comm, found, self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(_Callback):
    """Averages the logs of an epoch over the workers, in place.

    It has to be given before the callbacks that read the logs.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        names = sorted(logs or {})
        if not logs:
            return
        comm = comm_of(global_process_set)
        comm.agree(f"hvd.callbacks: metrics {' '.join(names)}")
        means = comm.allreduce(
            np.asarray([logs[name] for name in names], np.float64), ReduceOp.MEAN
        )
        logs.update(zip(names, means.tolist(), strict=True))


class LearningRateScheduleCallback(_Callback):
    """Sets the learning rate to ``initial_lr`` times a multiplier.

    The rate is set from ``start_epoch`` up to but not at ``end_epoch``. A multiplier ``m`` that is
    a number means ``m ** (epoch - start_epoch)``. A function is called with the epoch, which has a
    fraction if ``staircase`` is False. With ``momentum_correction`` the velocities of an optimizer
    with momentum are scaled with the rate.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.momentum_correction = momentum_correction
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Callable[[float], float]
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            # As in Horovod: a number is a factor of each epoch.
            self.staircase = True
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: object = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Could not autodetect the number of steps per epoch. Please specify the"
                    f" steps_per_epoch parameter to the {type(self).__name__}()."
                )

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if self.staircase and batch == 0:
            self._set(self.current_epoch)
        elif not self.staircase:
            assert self.steps_per_epoch is not None
            self._set(self.current_epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(np.asarray(self._optimizer.learning_rate))

    @property
    def _optimizer(self) -> DialectOptimizer:
        return self.model.optimizer

    def _set(self, epoch: float) -> None:
        before, rate = (
            float(np.asarray(self._optimizer.learning_rate)),
            self.initial_lr * self.multiplier(epoch),
        )
        self._optimizer.learning_rate = rate
        # Keras's velocities hold the rate that they were made with.
        if (
            self.momentum_correction
            and before
            and rate != before
            and getattr(self._optimizer, "momentum", 0.0)
        ):
            for velocity in keras2.velocities(self._optimizer, self.model):
                velocity.assign(velocity * (rate / before))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from ``initial_lr / size`` to ``initial_lr`` over the first epochs.

    Source: Goyal et al. 2017, arXiv:1706.02677.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # So that the last step of the warm-up has the whole rate.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            return 1.0 / basics.size() * (epoch * (basics.size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = float(np.asarray(self._optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(_ModelCheckpoint):
    """A `ModelCheckpoint` that keeps the best model.

    Its ``filepath`` is set later, by the code that uses it.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        # The path is a stand-in that Keras accepts: it checks the ending.
        super().__init__(
            "best.keras", monitor, verbose, save_best_only=True, mode=mode, save_freq=save_freq
        )


class CommitStateCallback(_Callback):
    """Commits an elastic state every ``batches_per_commit`` batches and at each epoch's end."""

    def __init__(self, state: elastic.State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if (batch + 1) % self.batches_per_commit == 0:
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(_Callback):
    """Keeps the number of the last batch in ``state.batch``; 0 at the end of an epoch.

    A script that takes up an epoch in its middle gives `fit` the rest of it, as Horovod's examples
    do.
    """

    def __init__(self, state: _StateWithBatch) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(_Callback):
    """Keeps the number of epochs done in ``state.epoch``, counted over restarts."""

    def __init__(self, state: _StateWithEpoch) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: object = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        # After a restart the script gives `fit` the epochs that are left, which Keras counts from
        # 0.
        self.state.epoch = self.initial_epoch + epoch + 1
