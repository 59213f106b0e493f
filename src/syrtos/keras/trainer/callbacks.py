"""Wraps the callbacks of a script so that they behave as in one process.

They see all samples, write once, and decide alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from syrtos.checkpoint.encoding import Arrays
from syrtos.comm import compression, world
from syrtos.comm.communicator import Communicator
from syrtos.data.loader import Position
from syrtos.errors import DataError
from syrtos.keras import backend, fitting, keras_internals
from syrtos.keras.features import asynchronous, finite, learning_rate, local_steps, moments, sharding
from syrtos.keras.features.learning_rate import Scaling
from syrtos.keras.files import temporary
from syrtos.keras.recovery import replay
from syrtos.keras.replica import snapshot, state
from syrtos.keras.split.checks import Checks
from syrtos.keras.trainer import accumulation, exchange_plan, interrupts, replicas
from syrtos.keras.trainer.callback_times import Timed
from syrtos.keras.trainer.timing import clock

if TYPE_CHECKING:  # they import Keras 3, and this serves Keras 2 too
    from syrtos.keras.datasets.planned import Stream
    from syrtos.keras.protocols import CallbackList, Logs, Model
    from syrtos.keras.recovery.resume import Saved

# These, of Keras 3 or Keras 2, write files or to the terminal: rank 0's do it for all, except in folders that each
# worker has made.
_WRITERS = {
    "ModelCheckpoint",
    "BackupAndRestore",
    "OrbaxCheckpoint",
    "CSVLogger",
    "TensorBoard",
    "RemoteMonitor",
    "ProgbarLogger",
}
_SAVERS = {"ModelCheckpoint", "BackupAndRestore"}
# Of these `syrtos verify` runs the ones that write no file of their own: models are saved into its run directory.
_WITHOUT_FILES = {"ModelCheckpoint", "ProgbarLogger"}
_PATHS = ("filepath", "backup_dir", "directory", "filename", "log_dir")


def callbacks_of_worker(chosen: list[Any]) -> list[Any]:
    """Returns the callbacks of a script that this worker runs."""
    if world.current().options.verify == "only":
        chosen = [callback for callback in _flat(chosen) if not _kinds(callback) & (_WRITERS - _WITHOUT_FILES)]
    if world.sharing().world.rank == 0:
        return chosen
    return [callback for callback in _flat(chosen) if not _writes_for_all(callback) or _saves_together(callback)]


def _saves_together(callback: object) -> bool:
    """Returns whether all workers must run the callback, to gather the model that it saves.

    One of them writes the file.
    """
    return backend.active().splits_variables() and not _SAVERS.isdisjoint(_kinds(callback))


def _kinds(callback: object) -> set[str]:
    """Returns the names of a callback's class and of those that it is derived from."""
    return {base.__name__ for base in type(callback).__mro__}


def _flat(chosen: Any) -> list[Any]:
    """Returns a list of callbacks from what Keras takes: one callback, or lists of them at any depth."""
    if isinstance(chosen, list | tuple):
        return [callback for part in chosen for callback in _flat(part)]
    return [] if chosen is None else [chosen]


def _writes_for_all(callback: object) -> bool:
    if _WRITERS.isdisjoint(_kinds(callback)):
        return False
    return not any(temporary.is_own(getattr(callback, name, None)) for name in _PATHS)


def enclose(callback_list: Any) -> None:
    """Puts our two callbacks around all others of a list."""
    if world.sharing().world.rank or world.current().options.verify == "only":
        callback_list.callbacks = callbacks_of_worker(callback_list.callbacks)
    last = AfterUsers(callback_list)
    keras_internals.call_at_once(callback_list)
    callback_list.callbacks.insert(0, BeforeUsers(last))
    callback_list.callbacks = Timed([*callback_list.callbacks, last], world.current().ledger)
    for callback in (callback_list.callbacks[0], last):
        callback.set_model(getattr(callback_list, "model", None))  # a script's own list may have none
        callback.set_params(callback_list.params)


def _as_list(saved: Saved | None) -> list[Any] | None:
    return [saved.name, saved.position.epoch, saved.position.place, saved.offset, saved.number] if saved else None


# The replicas are compared every so many steps, and at most for one part in so many of the time.
_CHECK_STEPS = 100
_CHECK_COST = 200
_INTERRUPTED = 2.0


def _number(value: Any) -> float | None:
    """Returns a value of the logs as a float, if it is one number; else None."""
    try:
        return float(value) if not isinstance(value, str) and np.ndim(value) == 0 else None
    except (TypeError, ValueError):
        return None


def _steps_in_call(model: Model) -> int:
    """Returns the steps that one call of the training function makes; 1 where a script's own model does not say."""
    return int(getattr(model, "steps_per_execution", None) or 1)


def _index(batch: Any) -> int:
    """Returns the number of a batch; 0 where a loop of the script's own gives something else than a number."""
    try:
        return int(batch)
    except (TypeError, ValueError):
        return 0


class _Quiet:
    """A callback without a base class, so that it serves Keras 3 and Keras 2 alike."""

    _supports_tf_logs = True  # Keras 2: logs need not be converted for us

    def __init__(self) -> None:
        self.model: Model = None
        self.params: dict[str, Any] = {}

    def set_model(self, model: Model) -> None:
        self.model = model

    def set_params(self, params: dict[str, Any]) -> None:
        self.params = params or {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)


class BeforeUsers(_Quiet):
    """Runs before the script's callbacks: the step is over, and the time from here on is counted as theirs."""

    def __init__(self, last: AfterUsers) -> None:
        super().__init__()
        self._last = last
        self._ledger = world.current().ledger

    def on_train_begin(self, logs: Logs = None) -> None:
        self._last.scaling.begin(self.model)
        self._last.protect()
        self._ledger.norms.is_off = bool(
            getattr(getattr(self.model, "optimizer", None), "gradient_accumulation_steps", None)
        )
        self._ledger.become("callbacks")

    def on_train_end(self, logs: Logs = None) -> None:
        self._ledger.become("callbacks")

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._last.data_epoch_begins(epoch, self.params)
        Checks.epochs, Checks.epoch_steps = Checks.epochs + 1, self.params.get("steps")
        self._ledger.become("callbacks")

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._ledger.begin_step("train", "callbacks", steps=_steps_in_call(self.model))

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._ledger.begin_step("test", "callbacks")

    def on_predict_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._ledger.begin_step("predict", "callbacks")

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._ledger.updated_since_sum()
        self._ledger.become("callbacks")
        self._last.step_is_over(batch)

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._ledger.become("callbacks")

    on_predict_batch_end = on_test_batch_end

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._ledger.drop_step()
        self._ledger.become("callbacks")
        self._last.rate = learning_rate.rate_of(self.model)
        asynchronous.take_weights()
        if self.model is not None and self._last.trains:
            accumulation.gather(world.sharing().comm, self.model)
        if logs:
            asynchronous.average(logs)


class AfterUsers(_Quiet):
    """Runs after the script's callbacks, on every worker, and makes their decisions common."""

    def __init__(self, everyone: CallbackList) -> None:
        """``everyone``: the list of all callbacks, which has these two in it."""
        super().__init__()
        self._everyone = everyone
        self._session = world.sharing()
        self.trains = self._checked = self._built_by_step = False
        self.scaling = Scaling(self._session)
        self._steps = self._epoch = self._epoch_began_at = 0
        self._made = 0  # steps of this process, without those before a restart
        self.rate: float | None = None  # of the epoch that ends, before callbacks change it
        self._since_check = 0
        self._interval = _CHECK_STEPS
        self._checked_at = time.perf_counter()
        self._iterator: Any = fitting.iterator_in_use()  # before a callback can evaluate, which uses another
        self._script_counts_steps = self._endless = self._saves_within_epochs = False
        self._stream: Stream | None = None
        self._protection: replay.Protection | None = None
        self._notice = finite.Notice()
        self._rounds: local_steps.Rounds | None = None
        self._before = (0, 0, 0)  # of this `fit`: meetings, sums and their bytes

    # -- training ------------------------------------------------------------------------------

    def on_train_begin(self, logs: Logs = None) -> None:
        """Makes all workers start from rank 0's state, including what its callbacks have restored."""
        comm = self._session.comm
        self.trains = True
        if self.model is not None:
            self._begin_equal(comm)
            self._saves_within_epochs = accumulation.may_be_saved(comm, self._everyone.callbacks)
            self._begin_stream(comm)
            asynchronous.begin_equal(self.model)
        self.scaling.scale_if_new()
        self._rounds = local_steps.begin(self.model) if fitting.fit_is_running() else None
        if fitting.depth() <= 1:
            finite.begin()
        self._forget_what_was_not_sent()
        self._session.ledger.become("build")
        self._before = self._exchange_counts(comm)
        if self._protection:
            self._protection.begin()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._session.comm.agree(f"epoch {epoch} of fit")
        if self._rounds:
            self._rounds.epoch_begins()
        self._epoch, self._epoch_began_at = epoch, self._steps
        self._session.ledger.become("input")

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self.scaling.warm_up(self._epoch, self._steps, self.params.get("steps"))
        if self._rounds:
            self._rounds.batch_begins()
        self._tell_batch(_index(batch), _steps_in_call(self.model))
        self._begin()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self._rounds is None or self._rounds.met:
            self._agree_to_stop()
        else:
            self._rounds.asks_to_stop()
        count = self._steps_since(batch)
        self._steps += count
        self._made += count
        self._since_check += count
        compares = (
            world.current().world.size > 1
            and not asynchronous.asynchronous_servers()
            and (self._rounds is None or self._rounds.met)
        )
        if compares and self._check_is_due():
            self._check()
        self._notice.look(self._epoch, _index(batch), logs)
        if self._protection:
            self._protection.batch_ended(self._epoch, count, logs, self._rounds is None or self._rounds.met)
        self._session.ledger.end_step(_index(batch), count)
        self._session.ledger.point(lambda: self._curve_point(self._epoch, logs, learning_rate.rate_of(self.model)))

    def _curve_point(self, epoch: int, logs: Logs, rate: float | None) -> dict[str, Any]:
        """Returns a point of the curves: the epoch, the logs that are numbers, and the learning rate.

        Callbacks may have put anything into the logs.
        """
        numbers = {
            str(name): number for name, value in dict(logs or {}).items() if (number := _number(value)) is not None
        }
        return {"epoch": epoch + 1, "logs": numbers, "learning_rate": rate}

    def _moments(self) -> dict[str, Any]:
        """Returns what Adam's moments say of the noise of gradients, on rank 0 where XLA exchanges.

        Nothing else is measured for it there.
        """
        compiled = self._session.ledger.told.get("exchange") == "compiled"
        found = moments.noise_moments(self.model.optimizer) if compiled and self._session.world.rank == 0 else None
        return {"moments": found} if found else {}

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._agree_to_stop()
        if asynchronous.meet(self._stops()):
            self.model.stop_training = True
        self.data_epoch_ends()
        if (
            not self._steps and fitting.fit_is_running() and not asynchronous.asynchronous_servers()
        ):  # there others may have been faster
            raise DataError(
                "The data set is empty: an epoch ended without a single batch. Check the filters that it is made from."
            )
        self.scaling.epoch_ended(self._steps - self._epoch_began_at)
        self._session.ledger.epoch(
            **self._curve_point(epoch, logs, self.rate),
            epochs=self.params.get("epochs"),
            step=self._steps,
            steps_per_epoch=self.params.get("steps"),
            **self._moments(),
        )
        if self._protection:
            self._protection.epoch_ended()
        self._session.ledger.say_sums()
        self._session.ledger.become("rest")
        self._session.ledger.flush()

    def on_train_end(self, logs: Logs = None) -> None:
        """Compares the replicas, and ends what `fit` has begun.

        The workers meet to compare, so a checkpoint that one of them reads after `fit` is complete.
        """
        self.trains = False
        if fitting.depth() <= 1:
            finite.begin()
        self._session.ledger.become("rest")
        if self.model is None:
            return
        comm, variables = self._replicas()
        if comm.size > 1:
            with self._session.ledger.span("exchange"):
                state.check_equal(comm, variables, self._steps)
            self._say_what_was_exchanged(comm)
        if self._stream:
            self._stream.close()
        if self._protection:
            self._protection.commit_last()
        self._session.ledger.flush()

    # -- the same for evaluate and predict -------------------------------------------------------

    def on_test_begin(self, logs: Logs = None) -> None:
        """Makes the replicas equal, or proves that they are, for an evaluation outside of `fit`.

        Within `fit` they are equal already.
        """
        if rounds := local_steps.rounds():
            rounds.evaluation_begins(self.model)
        if not self.trains:
            self._evaluate_equal("evaluate")

    def on_test_end(self, logs: Logs = None) -> None:
        if rounds := local_steps.rounds():
            rounds.evaluation_ends(self.model)
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
        """Ends the step of a call of `fit`'s training function, before the script's callbacks run."""
        if self._rounds:
            self._rounds.batch_ended(self._steps_since(batch))
        self.data_step_is_over(batch)
        if self._saves_within_epochs:
            accumulation.gather(self._session.comm, self.model)

    def protect(self) -> None:
        """Sets up the snapshots of this `fit`, if there are any, before the script's callbacks run."""
        self._protection = replay.protect(self._everyone, self.model, self)

    def counters(self) -> dict[str, int]:
        """Returns how much has been trained: the steps, the epoch, and the number of steps at which it began."""
        return {"steps": self._steps, "epoch": self._epoch, "epoch_began_at": self._epoch_began_at}

    def arrays(self) -> Arrays:
        """Returns the other values from which training goes on: those of `--sync-every`."""
        return self._rounds.arrays() if self._rounds else {}

    def count_from(self, counters: dict[str, int], arrays: Arrays) -> None:
        """Restores what `counters` and `arrays` gave."""
        self._steps, self._epoch = counters["steps"], counters["epoch"]
        self._epoch_began_at, self._checked = counters["epoch_began_at"], False
        if self._rounds:
            self._rounds.put_back(arrays, self._steps - self._epoch_began_at)

    def data_step_is_over(self, batch: int) -> None:
        """Tells a planned data set, if there is one, that the batches of a call have been trained on."""
        if self._stream:
            self._stream.note_trained(self._steps_since(batch))

    def data_epoch_ends(self) -> None:
        """Tells a planned data set, if there is one, that its epoch ends."""
        if self._stream:
            self._stream.end_epoch(self._session, self._stops())

    # -- helpers -------------------------------------------------------------------------------

    def _tell_batch(self, batch: int, steps: int) -> None:
        """Notes which batch comes, for messages about its gradients."""
        stream = self._stream
        finite.batch_begins(self._epoch, batch, steps, (lambda: stream.records(steps)) if stream else list)

    def _begin_equal(self, comm: Communicator) -> None:
        if comm.size == 1:
            return
        with self._session.ledger.span("exchange"):
            replicas.begin_training(comm, self.model)
            accumulation.begin(comm, self.model)
        self.model._initial_epoch = comm.broadcast_object(getattr(self.model, "_initial_epoch", None))

    def _forget_what_was_not_sent(self) -> None:
        """Drops the gradients that compression has held back so far, if the optimizer is new.

        They were of another training of the same weights, e.g. of another fold.
        """
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

    def _exchange_counts(self, comm: Communicator) -> tuple[int, int, int]:
        return comm.meetings, comm.sums, comm.summed

    def _say_what_was_exchanged(self, comm: Communicator) -> None:
        """Writes the mean exchange of a step to the ledger, for a forecast.

        With it goes the number of bytes that `--shard-update` would divide.
        """
        if not self._made or asynchronous.asynchronous_servers():
            return
        if backend.computes_global_batches():
            exchange_plan.tell(self.model.trainable_variables, list)
        each = [
            (now - before) / self._made for now, before in zip(self._exchange_counts(comm), self._before, strict=True)
        ]
        optimizer = getattr(self.model, "optimizer", None)
        state_bytes = 0 if sharding.is_asked() or self._rounds else sharding.divisible(optimizer)
        self._session.ledger.say(
            meetings=round(each[0], 2),
            gradient_sums=round(each[1], 2),
            gradient_bytes=round(each[2]),
            optimizer_state=state_bytes,
        )

    def _check_built(self) -> None:
        """Compares the replicas of a model that was built by its first step, and could not be compared before."""
        if self._built_by_step:
            self._built_by_step = False
            state.check_equal(self._session.comm, state.of_model(self.model), self._steps)

    def _evaluate_equal(self, name: str) -> None:
        if self.model is not None:
            self._built_by_step = not state.of_model(self.model)
            replicas.compute_equal(self._session.comm, self.model, name)

    def _begin_stream(self, comm: Communicator) -> None:
        """Begins a planned data set, where the model's earlier training on it has come to, or at its beginning.

        The place is known from this process, from the file that the model was loaded from, or from a snapshot.
        """
        self._stream = keras_internals.stream_of(self._iterator)
        if self._stream is None:
            return
        from syrtos.keras.recovery import resume

        self._script_counts_steps = self._iterator.steps_per_epoch is not None
        position, number = resume.trained_before(self.model, self._stream.dataset)
        everyone = (
            comm if asynchronous.asynchronous_servers() else world.current().comm
        )  # also where the script says what is exchanged
        saved = everyone.broadcast_object(_as_list(resume.saved_of(self.model)))
        if saved and saved[0] == self._stream.dataset.name:
            position, number = Position(saved[1], saved[2]), saved[4]
            if self.model._initial_epoch is not None and not self._script_counts_steps:
                self.model._initial_epoch = saved[1] + saved[3]
        if self._protection:
            now = position or Position()
            began = (now.epoch, now.place, self._stream.dataset.trainings if number is None else number)
            *place, number = self._protection.data_begins(began)
            position = Position(*place)
        several = _steps_in_call(self.model) > 1
        # Where records may be left out, so may be a batch of them, and an epoch then has fewer steps than are counted
        # here.
        complete = self._stream.dataset.loader.policy.on_bad_record == "fail"
        endless = (self._script_counts_steps or (complete and not several)) and not asynchronous.asynchronous_servers()
        self._stream.begin(position, number, endless, self._session)
        self._endless = endless

    def data_epoch_begins(self, epoch: int, params: dict[str, Any]) -> None:
        """Begins an epoch of a planned data set, if there is one, and tells Keras how many steps it has.

        An epoch that goes on in its middle has fewer than the others.
        """
        if self._stream is None:
            return
        from syrtos.keras.recovery import resume

        resume.trains_on(self.model, resume.TrainedData(self._stream, epoch - self._stream.position.epoch))
        steps = self._stream.epoch_begins()
        if self._script_counts_steps:
            self._iterator._num_batches = None
            return
        if self._endless:
            self._iterator._num_batches, self._iterator.steps_per_epoch = None, steps
        else:
            self._iterator._num_batches = steps
        if params.get("steps") != steps:
            self._everyone.set_params({**params, "steps": steps})

    def _begin(self) -> None:
        self._session.ledger.become("compute")
        clock.step_begins()

    def _steps_since(self, batch: Any) -> int:
        return min(_steps_in_call(self.model), _index(batch) + 1)

    def _replicas(self) -> tuple[Communicator, list[Any]]:
        """Returns the workers that must hold equal values, and the variables that must be equal.

        They are all workers and all variables, or those of an optimizer that the script has asked to reduce.
        """
        chosen = backend.active().exchanged_by(self.model)
        variables = state.of_model(self.model)
        if self._rounds and self.trains:  # each worker counts its own samples until the epoch ends
            counts = set(map(id, state.of_metrics(self.model)))
            variables = [v for v in variables if id(v) not in counts]
        return chosen or (self._session.comm, variables)

    def _check_is_due(self) -> bool:
        chosen = self._session.options.check_every
        return bool(chosen) and (not self._checked or self._since_check >= (chosen if chosen > 0 else self._interval))

    def _check(self) -> None:
        """Compares the replicas, and sets how rarely that is done.

        It is to cost at most one part in `_CHECK_COST` of the time.
        """
        started = time.perf_counter()
        comm, variables = self._replicas()
        if comm.size == 1:  # what only this worker trains
            self._checked, self._since_check = True, 0
            return
        with self._session.ledger.span("exchange"):
            backend.active().settle(self.model)
            state.check_equal(comm, variables, self._steps)
        took = max(comm.agree("cost of comparing", time.perf_counter() - started))
        training = max(comm.agree("time since comparing", started - self._checked_at))
        per_step = training / max(self._since_check, 1)
        self._interval = max(_CHECK_STEPS, math.ceil(_CHECK_COST * took / per_step))
        self._checked, self._since_check, self._checked_at = True, 0, time.perf_counter()

    def _agree_to_stop(self) -> None:
        """Stops training on all workers at the same step, if any of them wants to stop.

        Raises:
            KeyboardInterrupt: one of them was interrupted.
        """
        wish = (
            _INTERRUPTED
            if interrupts.is_interrupted()
            else float(self._rounds.asks_to_stop() if self._rounds else self._stops())
        )
        wishes = self._session.comm.agree("stop training?", wish)
        if max(wishes) == _INTERRUPTED:
            raise KeyboardInterrupt
        if any(wishes):
            self.model.stop_training = True

    def _stops(self) -> bool:
        """Returns whether this worker's script has asked to stop."""
        # a model that was never compiled has no such attribute
        return bool(getattr(self.model, "stop_training", False))


def within(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the `__init__` of Keras's list of callbacks: writing is left to rank 0, and our two enclose the others."""

    def init(self: Any, chosen: Any = None, *args: Any, **kwargs: Any) -> None:
        original(self, callbacks_of_worker(_flat(chosen)), *args, **kwargs)
        enclose(self)

    return init
