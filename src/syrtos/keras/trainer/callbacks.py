"""Wraps the callbacks of a script so that they behave as in one process.

They see all samples, write once, and decide alike.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate

import numpy as np

from syrtos.checkpoint.encoding import Arrays
from syrtos.comm import compression, world
from syrtos.comm.communicator import Communicator
from syrtos.comm.interrupted import OtherInterruptedError
from syrtos.errors import DataError
from syrtos.keras import backend, fitting, keras_internals, updates
from syrtos.keras.features import learning_rate, registry
from syrtos.keras.features.feature import Fit
from syrtos.keras.recovery import replay
from syrtos.keras.replica import accumulation, snapshot, state
from syrtos.keras.trainer import interrupts, replicas
from syrtos.keras.trainer.callback_times import Timed
from syrtos.keras.trainer.chosen_callbacks import callbacks_of_worker, flatten
from syrtos.keras.trainer.comparisons import Comparisons, equal_replicas
from syrtos.keras.trainer.exchange_counts import ExchangeCounts
from syrtos.keras.trainer.planned_training import PlannedTraining
from syrtos.keras.trainer.timing import StepClock
from syrtos.observe.ledger import Ledger

if TYPE_CHECKING:
    from syrtos.keras.protocols import CallbackList, Logs, Model, P, TrainingParams


def enclose(callback_list: CallbackList) -> None:
    """Puts our two callbacks around all others of a list."""
    # Once more after `within`: Keras itself adds callbacks to the list, e.g. its progress bar.
    session = world.current()
    if world.sharing().world.rank or session.options.verifies:
        callback_list.callbacks = callbacks_of_worker(callback_list.callbacks)
    last = AfterUsers(callback_list)
    keras_internals.call_in_training_thread(callback_list)
    first = BeforeUsers(last, session.ledger)
    callback_list.callbacks.insert(0, first)
    callback_list.callbacks = Timed([*callback_list.callbacks, last], session.ledger)
    for callback in (first, last):
        # A list that a loop of the script's own makes may have no model.
        callback.set_model(getattr(callback_list, "model", None))
        callback.set_params(callback_list.params)


# What a worker that was interrupted gives in the place of a wish, which is 0 or 1.
_INTERRUPTED = 2.0


def _number(value: Any) -> float | None:
    """Returns a value of the logs as a float, if it is one number; else None."""
    try:
        return float(value) if not isinstance(value, str) and np.ndim(value) == 0 else None
    except (TypeError, ValueError):
        return None


def _index(batch: Any) -> int:
    """Returns the number of a batch; 0 where a loop of the script's own gives no number."""
    try:
        return int(batch)
    except (TypeError, ValueError):
        return 0


class _Quiet:
    """A callback without a base class, so that it serves Keras 3 and Keras 2 alike."""

    # Keras 2 need not convert the logs to NumPy's numbers for us, which would wait for the step.
    _supports_tf_logs = True

    def __init__(self) -> None:
        # A `Model`; None, or anything, in a loop of the script's own.
        self.model: Any = None
        self.params: TrainingParams = {}

    def set_model(self, model: Model | None) -> None:
        self.model = model

    def set_params(self, params: TrainingParams | None) -> None:
        self.params = params or {}

    # Keras calls many methods of its callbacks; those that are not defined do nothing.
    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)


class BeforeUsers(_Quiet):
    """Runs before the script's callbacks: the step is over, and their time counts from here on."""

    def __init__(self, last: AfterUsers, ledger: Ledger) -> None:
        super().__init__()
        self._last, self._ledger = last, ledger

    def on_train_begin(self, logs: Logs = None) -> None:
        # Both before the script's callbacks: these may restore an optimizer with another rate, or
        # the state of a backup.
        self._last.before_callbacks(self.model)
        self._last.protect()
        self._ledger.norms.is_off = updates.accumulates(getattr(self.model, "optimizer", None))
        self._ledger.become("callbacks")

    def on_train_end(self, logs: Logs = None) -> None:
        self._ledger.become("callbacks")

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._last.data_epoch_begins(epoch, self.params)
        self._ledger.become("callbacks")

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._ledger.begin_step(
            "train", "callbacks", steps=keras_internals.steps_in_call(self.model)
        )

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._ledger.begin_step("test", "callbacks")

    def on_predict_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._ledger.begin_step("predict", "callbacks")

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._ledger.updated_since_sum()
        self._await_last_step(batch, logs)
        self._ledger.become("callbacks")
        self._last.step_is_over(batch)

    def _await_last_step(self, batch: int, logs: Logs) -> None:
        """Waits until the last step of an epoch, or of an evaluation, is computed.

        Else its time would count as that of what follows.
        """
        if _index(batch) + 1 >= (self.params.get("steps") or math.inf):
            backend.active().await_values(logs)

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._await_last_step(batch, logs)
        self._ledger.become("callbacks")

    on_predict_batch_end = on_test_batch_end

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        self._ledger.drop_step()
        self._ledger.become("callbacks")
        self._last.rate = learning_rate.rate_of(self.model)
        for feature in self._last.features:
            feature.epoch_computed(self._last.fit, logs)
        if self._last.protection:
            backend.active().epoch_computed()
        if self.model is not None and self._last.trains:
            accumulation.gather(world.sharing().comm, self.model)


class AfterUsers(_Quiet):
    """Runs after the script's callbacks, on every worker, and makes their decisions common."""

    def __init__(self, everyone: CallbackList) -> None:
        """``everyone``: the list of all callbacks, which has these two in it."""
        super().__init__()
        self._everyone = everyone
        self._session, self._workers = world.sharing(), world.current().world.size
        self.trains = self._built_by_step = False
        self.features = registry.active()
        self.fit = Fit()
        self._made = 0  # steps of this process, without those before a restart
        self.rate: float | None = None  # of the epoch that ends, before callbacks change it
        self._comparisons = Comparisons(self._session)
        self._data = PlannedTraining(everyone, self._session)
        self._saves_within_epochs = False
        self.protection: replay.Protection | None = None
        self._exchanges = ExchangeCounts(self._session)

    # -- training ------------------------------------------------------------------------------

    def on_train_begin(self, logs: Logs = None) -> None:
        """Makes all workers start from rank 0's state, including what its callbacks restored."""
        comm = self._session.comm
        self.trains = True
        if self.model is not None:
            self._begin_equal(comm)
            self._saves_within_epochs = accumulation.may_be_saved(comm, self._everyone.callbacks)
            self._data.begin(self.model, keras_internals.steps_in_call(self.model), self.protection)
        for feature in self.features:
            feature.training_begins(self.fit)
        self._forget_what_was_not_sent()
        self._session.ledger.become("build")
        self._exchanges.begin()
        if self.protection:
            self.protection.begin()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._session.comm.agree(f"epoch {epoch} of fit")
        self.fit.epoch, self.fit.epoch_began_at = epoch, self.fit.steps
        for feature in self.features:
            feature.epoch_begins(self.fit)
        if self.protection:
            backend.active().epoch_begins(is_left_out=False)
        self._session.ledger.become("input")

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        fit = self.fit
        fit.call_steps, fit.batch = keras_internals.steps_in_call(self.model), _index(batch)
        fit.epoch_steps, fit.records = (
            self.params.get("steps"),
            self._data.records_of(fit.call_steps),
        )
        for feature in self.features:
            feature.batch_begins(fit)
        self._begin()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        fit = self.fit
        have_met = not any(f.is_between_meetings(fit) for f in self.features)
        self._stop_if_asked(have_met)
        count = self._steps_of_training(batch)
        fit.steps += count
        self._made += count
        self._comparisons.count(count)
        compares = self._workers > 1 and not self._replicas_differ()
        if compares and self._comparisons.is_due():
            self._comparisons.compare(self.model, self._counts_alone(), fit.steps)
        fit.batch = _index(batch)
        for feature in self.features:
            feature.batch_ends(fit, logs)
        if self.protection:
            self.protection.batch_ended(fit.epoch, count, logs, have_met)
        self._session.ledger.end_step(_index(batch), count)
        self._session.ledger.point(
            lambda: {
                **self._curve_point(fit.epoch, logs, learning_rate.rate_of(self.model)),
                "epochs": self.params.get("epochs"),
                "batch": fit.batch + 1,
                "steps_per_epoch": self.params.get("steps"),
            },
            logs,
        )

    def _curve_point(self, epoch: int, logs: Logs, rate: float | None) -> dict[str, object]:
        """Returns a point of the curves: the epoch, the numeric logs, and the learning rate."""
        # Callbacks may have put anything into the logs.
        numbers = {
            str(name): number
            for name, value in dict(logs or {}).items()
            if (number := _number(value)) is not None
        }
        return {"epoch": epoch + 1, "logs": numbers, "learning_rate": rate}

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._stop_if_asked(have_met=True)
        for feature in self.features:
            feature.epoch_ends(self.fit)
        self.data_epoch_ends()
        # Where workers go at their own pace, others may have been faster.
        if not self.fit.steps and fitting.fit_is_running() and not self._replicas_differ():
            raise DataError(
                "The data set is empty: an epoch ended without a single batch. Check the filters"
                " that it is made from."
            )
        facts = [feature.epoch_facts(self.fit) for feature in self.features]
        self._session.ledger.epoch(
            **self._curve_point(epoch, logs, self.rate),
            epochs=self.params.get("epochs"),
            step=self.fit.steps,
            steps_per_epoch=self.params.get("steps"),
            **dict(collections.ChainMap(*facts)),
        )
        if self.protection:
            self.protection.epoch_ended()
        self._session.ledger.say_sums()
        self._session.ledger.become("rest")
        self._session.ledger.flush()

    def on_train_end(self, logs: Logs = None) -> None:
        """Compares the replicas, and ends what `fit` has begun.

        The workers meet to compare, so a checkpoint that one of them reads after `fit` is complete.
        """
        self.trains = False
        for feature in self.features:
            feature.training_ends(self.fit)
        self._session.ledger.become("rest")
        if self.model is None:
            return
        comm, variables = equal_replicas(self._session, self.model, without_metrics=False)
        if comm.size > 1:
            with self._session.ledger.span("exchange"):
                state.check_equal(comm, variables, self.fit.steps)
            self._exchanges.say(comm, self.model, self._made)
        self._data.end()
        if self.protection:
            self.protection.commit_last()
        self._session.ledger.flush()

    # -- the same for evaluate and predict -------------------------------------------------------

    def on_test_begin(self, logs: Logs = None) -> None:
        """Makes the replicas equal, or proves that they are, for an evaluation outside of `fit`.

        Within `fit` they are equal already.
        """
        for feature in self.features:
            feature.evaluation_begins(self.model)
        if not self.trains:
            self._evaluate_equal("evaluate")

    def on_test_end(self, logs: Logs = None) -> None:
        for feature in self.features:
            feature.evaluation_ends(self.model)
        if not self.trains:
            self._check_built()

    def on_predict_begin(self, logs: Logs = None) -> None:
        self._evaluate_equal("predict")

    def on_predict_end(self, logs: Logs = None) -> None:
        self._check_built()

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._begin()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._session.ledger.end_step(_index(batch), self._steps_since(batch))

    on_predict_batch_begin, on_predict_batch_end = on_test_batch_begin, on_test_batch_end

    def step_is_over(self, batch: int) -> None:
        """Ends the step of a call of `fit`'s training function, before the script's callbacks."""
        for feature in self.features:
            feature.batch_computed(self.fit, self._steps_of_training(batch))
        self.data_step_is_over(batch)
        if self._saves_within_epochs:
            accumulation.gather(self._session.comm, self.model)

    def set_model(self, model: Model | None) -> None:
        super().set_model(model)
        # A loop of the script's own may never begin a training.
        self.fit.model = model

    def before_callbacks(self, model: Any) -> None:
        """Begins a training, before the script's callbacks do."""
        self.fit, self._made = Fit(model, fitting.fit_is_running(), fitting.depth() <= 1), 0
        for feature in self.features:
            feature.before_callbacks(self.fit)

    def protect(self) -> None:
        """Sets up this `fit`'s snapshots, if there are any, before the script's callbacks run."""
        self.protection = replay.protect(self._everyone, self.model, self)

    def counters(self) -> dict[str, int]:
        """Returns the steps made so far, the epoch, and the number of steps at which it began."""
        fit = self.fit
        return {"steps": fit.steps, "epoch": fit.epoch, "epoch_began_at": fit.epoch_began_at}

    def arrays(self) -> Arrays:
        """Returns the other values from which training goes on: those of features."""
        return {
            f"{feature.name}/{name}": array
            for feature in self.features
            for name, array in feature.arrays(self.fit).items()
        }

    def count_from(self, counters: dict[str, int], arrays: Arrays) -> None:
        """Restores what `counters` and `arrays` gave."""
        fit = self.fit
        fit.steps, fit.epoch = counters["steps"], counters["epoch"]
        fit.epoch_began_at = counters["epoch_began_at"]
        self._comparisons.begin_anew()
        for feature in self.features:
            prefix = f"{feature.name}/"
            theirs = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
            feature.put_back(theirs, fit)

    def data_epoch_begins(self, epoch: int, params: TrainingParams) -> None:
        """Begins an epoch of a planned data set, if any, and tells Keras how many steps it has."""
        self._data.epoch_begins(self.model, epoch, params)

    def data_step_is_over(self, batch: int) -> None:
        """Tells a planned data set, if any, that the batches of a call have been trained on."""
        self._data.step_is_over(self._steps_since(batch))

    def data_epoch_ends(self) -> None:
        """Tells a planned data set, if there is one, that its epoch ends."""
        self._data.epoch_ends(self._stops())

    # -- helpers -------------------------------------------------------------------------------

    def _begin_equal(self, comm: Communicator) -> None:
        if comm.size == 1:
            return
        with self._session.ledger.span("exchange"):
            replicas.begin_training(comm, self.model)
            accumulation.begin(comm, self.model)
        self.model._initial_epoch = comm.broadcast_object(
            getattr(self.model, "_initial_epoch", None)
        )

    def _forget_what_was_not_sent(self) -> None:
        """Drops the gradients that compression has held back so far, if the optimizer is new."""
        # They were of another training of the same weights, e.g. of another fold.
        optimizer: Any = getattr(self.model, "optimizer", None)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if (
            self._session.options.compress == "none"
            or not hasattr(optimizer, "_iterations")
            or not backend.active().eager()
        ):
            return
        updates = keras_internals.updates_of(optimizer)
        is_new = updates is None or not int(state.memory_of(updates))
        if any(self._session.comm.agree("a new optimizer?", float(is_new))):
            compression.forget(state.held_objects(snapshot.trainable(self.model)))

    def _check_built(self) -> None:
        """Compares the replicas of a model that was built by its first step.

        They could not be compared before.
        """
        if self._built_by_step:
            self._built_by_step = False
            state.check_equal(self._session.comm, state.of_model(self.model), self.fit.steps)

    def _evaluate_equal(self, name: str) -> None:
        if self.model is not None:
            self._built_by_step = not state.of_model(self.model)
            replicas.compute_equal(self._session.comm, self.model, name)

    def _begin(self) -> None:
        self._session.ledger.become("compute")
        self._session.part(StepClock).step_begins()

    def _steps_of_training(self, batch: Any) -> int:
        """Returns the number of steps of the training function's call that this batch ends."""
        last, total = _index(batch), self.params.get("steps")
        # Keras 3 counts on in a last call that has fewer batches than the others.
        last = min(last, total - 1) if total else last
        return max(min(keras_internals.steps_in_call(self.model), last - self.fit.batch + 1), 1)

    def _steps_since(self, batch: Any) -> int:
        return min(keras_internals.steps_in_call(self.model), _index(batch) + 1)

    def _counts_alone(self) -> bool:
        """Returns whether workers count their own samples until the epoch ends (`--sync-every`)."""
        return self.trains and registry.trains_apart()

    def _replicas_differ(self) -> bool:
        """Returns whether the workers are meant to hold different weights now."""
        return any(feature.replicas_differ(self.fit) for feature in self.features)

    def _stop_if_asked(self, have_met: bool) -> None:
        """Stops training on all workers at the same step, if any of them wants to stop.

        Raises:
            KeyboardInterrupt: one of them was interrupted.
        """
        asks = self._stops()
        for feature in self.features:
            asks = feature.asks_to_stop(self.fit, asks)
        if not have_met:
            return
        interrupted = interrupts.is_interrupted()
        wish = _INTERRUPTED if interrupted else float(asks)
        wishes = self._session.comm.agree("stop training?", wish)
        if max(wishes) == _INTERRUPTED:
            if interrupted:
                raise KeyboardInterrupt
            raise OtherInterruptedError(list(wishes).index(_INTERRUPTED))
        if any(wishes):
            self.model.stop_training = True

    def _stops(self) -> bool:
        """Returns whether this worker's script has asked to stop."""
        # A model that was never compiled has no such attribute.
        return bool(getattr(self.model, "stop_training", False))


def within(
    original: Callable[Concatenate[CallbackList, object, P], None],
) -> Callable[Concatenate[CallbackList, object, P], None]:
    """Wraps the `__init__` of Keras's list of callbacks.

    Writing is left to rank 0, and two callbacks of syrtos enclose the others.
    """

    def init(self: CallbackList, chosen: object = None, *args: P.args, **kwargs: P.kwargs) -> None:
        original(self, callbacks_of_worker(flatten(chosen)), *args, **kwargs)
        enclose(self)

    return init
