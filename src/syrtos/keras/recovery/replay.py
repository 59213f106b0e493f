"""Continues a `fit` where it was when a worker died.

Its state is committed between steps, and put back by the same script in the next generation, which
runs the script from its beginning. A `fit` that has been trained, wholly or in part, draws its
batches again and leaves out their steps, callbacks and evaluations: so data of any kind, shuffled
by any generator, is where it was. Then the state is put back. The first step is computed all the
same. Generators of random numbers are not put back: data is drawn ahead of the steps, by a number
of batches that depends on chance, so only drawing again leaves them where they were.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from syrtos.checkpoint import encoding
from syrtos.checkpoint.encoding import Arrays
from syrtos.comm import compression, world
from syrtos.comm.world import Session
from syrtos.errors import SnapshotError
from syrtos.keras import backend, fitting, keras_internals
from syrtos.keras.features import learning_rate
from syrtos.keras.recovery import snapshot_store
from syrtos.keras.recovery.snapshot_store import Progress, SnapshotStore
from syrtos.keras.replica import snapshot, state

if TYPE_CHECKING:
    from syrtos.keras.protocols import CallbackList, Logs, Model, TrainingParams

# Snapshots take at most this part of the time (CheckFreq's bound; Mohan et al., FAST 2021).
_COST = 0.035
# So many steps lie at most between the first two snapshots of a process.
_MOST_AFTER_FIRST = 4.0


class CountedTraining(Protocol):
    """An object that counts the steps of a `fit`, also of those that are drawn again."""

    def data_epoch_begins(self, epoch: int, params: TrainingParams) -> None:
        """Notes that the batches of an epoch are drawn from now on."""
        ...

    def data_step_is_over(self, batch: int) -> None:
        """Notes that a batch has been trained on."""
        ...

    def data_epoch_ends(self) -> None:
        """Notes that the batches of an epoch have been trained on."""
        ...

    def counters(self) -> dict[str, int]:
        """Returns how much has been trained."""
        ...

    def arrays(self) -> Arrays:
        """Returns the other values of this worker from which training goes on."""
        ...

    def count_from(self, counters: dict[str, int], arrays: Arrays) -> None:
        """Restores what `counters` and `arrays` gave."""
        ...


def keeps_snapshots() -> bool:
    """Returns whether this run keeps what workers commit."""
    return snapshot_store.of_run() is not None


def commit_state(arrays: Arrays) -> None:
    """Keeps a state that a script commits itself, in the place of the one before.

    It is the same on all workers, which all call this together.

    Raises:
        OSError: there is no memory for it.
    """
    run = snapshot_store.of_run()
    assert run is not None
    run.commit(arrays)


def committed_state() -> Arrays | None:
    """Returns the last state that the script committed in the generation before, or None."""
    run = snapshot_store.of_run()
    if run is None or not run.last.commits:
        return None
    # By now the script may have made steps that are undone.
    ledger = world.current().ledger
    run.trained_before = run.last.trained - ledger.trained
    ledger.say(trained=run.trained_before)
    return encoding.unpack(run.slots.read(0, run.number))


def protect(everyone: CallbackList, model: Model, training: CountedTraining) -> Protection | None:
    """Returns the snapshots of a call of `fit` that begins now.

    None where nothing keeps snapshots, or where workers do not train together.
    """
    run = snapshot_store.of_run()
    session = world.current()
    together = world.sharing() is session and not session.options.asynchronous
    if (
        run is None
        or model is None
        or not together
        or fitting.depth() != 1
        or run.fits >= snapshot_store.KEPT_FITS
    ):
        return None
    if (
        getattr(model, "steps_per_execution", 1) > 1
        and keras_internals.length_of(fitting.iterator_in_use()) is None
    ):
        # The last call of an epoch may have fewer steps than the others, by a number that is not
        # known before.
        return None
    run.fits += 1
    return Protection(run, everyone, model, training)


class Protection:
    """The snapshots of one call of `fit`."""

    def __init__(
        self, run: SnapshotStore, everyone: CallbackList, model: Model, training: CountedTraining
    ) -> None:
        """Finds what was committed of this `fit`, if anything.

        It is called before the callbacks' `on_train_begin`.
        """
        self._run = run
        self._training = training
        self._everyone = everyone
        self._model = model
        self._session: Session = world.current()
        self._place = Progress(fit=run.fits, trained=run.last.trained if run.fits > 1 else 0)
        self._since = 0  # calls since the last snapshot
        self._written_at = time.perf_counter()
        # plain attributes of callbacks that `on_train_begin` has left as they were
        self._begun_with = [snapshot.plain_attributes(callback) for callback in self._callbacks()]
        self._committed = run.committed_state(run.fits)
        if self._committed:
            facts = self._committed.facts
            facts["callbacks"] = snapshot.callbacks_kept(self._callbacks(), facts)
            snapshot.keep_written(self._callbacks(), facts["callbacks"])
        else:
            run.keep_ended()

    def _callbacks(self) -> list[object]:
        """Returns the script's and Keras's callbacks, without our two around them."""
        return self._everyone.callbacks[1:-1]

    # -- going on ------------------------------------------------------------------------------

    def data_begins(self, position: tuple[int, int, int]) -> tuple[int, int, int]:
        """Returns where training on a planned data set begins.

        It is ``position``, or where training has begun in the generation before.
        """
        if self._committed and self._committed.place.data:
            epoch, place, number = self._committed.place.data
            position = epoch, place, number
        self._place.data = position
        return position

    def begin(self) -> None:
        """Begins to replay what was committed, if anything, after all `on_train_begin`."""
        snapshot.begin_logs(self._callbacks())
        for callback, given in zip(self._callbacks(), self._begun_with, strict=True):
            now = snapshot.plain_attributes(callback)
            for name in [name for name, value in given.items() if now.get(name, ...) != value]:
                del given[name]
        if self._committed is None:
            self._place.first_epoch = getattr(self._model, "_initial_epoch", None) or 0
            return
        place = self._place = self._committed.place
        self._model._initial_epoch = place.first_epoch or None
        _Replay(
            self._everyone, self._model, self._training, place, self._committed.facts["logs"], self
        )

    def put_back(self) -> None:
        """Restores the state as it was committed."""
        assert self._committed is not None
        found, self._committed = self._committed, None
        with self._session.ledger.span("checkpoint"):
            snapshot.put_back_variables(self._model, found.alike, found.mine, found.facts)
            compression.put_back(state.held_objects(snapshot.trainable(self._model)), found.mine)
            snapshot.put_back_callbacks(self._callbacks(), found.facts["callbacks"], found.mine)
        backend.active().set_drawn(found.facts["drawn"])
        self._session.ledger.say(trained=found.place.trained)
        self._model.stop_training = found.facts["stop"]
        learning_rate.put_back(self._model.optimizer, found.facts["climb"])
        self._training.count_from(found.facts["counters"], found.mine)
        if not found.place.epoch_ended and not found.place.ended:
            snapshot.show_epoch(self._callbacks(), found.place.epoch)
        self._written_at = time.perf_counter()

    # -- committing ----------------------------------------------------------------------------

    def batch_ended(self, epoch: int, steps: int, logs: Logs, have_met: bool = True) -> None:
        """Counts a call of the training function, and commits a snapshot if it is time.

        It is called after the callbacks of the call.

        ``steps``: those that the call has made; ``have_met``: whether all workers are there, with
            equal weights.
        """
        cut = bool(getattr(self._model, "stop_training", False))
        calls, trained = self._place.calls + 1, self._place.trained + steps
        self._place = dataclasses.replace(
            self._place, calls=calls, trained=trained, epoch=epoch, epoch_ended=False, cut=cut
        )
        self._since += 1
        if self._since >= self._run.interval and have_met:
            self._commit(logs)

    def epoch_ended(self) -> None:
        """Notes that an epoch's last callbacks have run; commits a snapshot if it is about time."""
        self._place = dataclasses.replace(self._place, epoch_ended=True)
        if 2 * self._since >= self._run.interval:
            self._commit({})

    def commit_last(self) -> None:
        """Commits a last snapshot, after `on_train_end`."""
        self._place = dataclasses.replace(self._place, ended=True)
        self._commit({})

    def _commit(self, logs: Logs) -> None:
        """Writes this worker's part of a snapshot.

        Where a worker can't, no worker writes any more: the run goes on unprotected.
        """
        run, comm = self._run, self._session.comm
        if math.isinf(run.interval):
            return
        self._await_steps()
        began = time.perf_counter()
        if self._session.options.on_divergence == "repair":
            self._check_equal()
        with self._session.ledger.span("checkpoint"):
            written = self._write(logs)
        took = time.perf_counter() - began
        self._session.ledger.add("snapshot_seconds", "all", took)
        step = (began - self._written_at) / max(self._since, 1)
        wanted = self._interval_after(took, step) if written else math.inf
        run.took, run.interval = took, max(comm.agree("steps between snapshots", wanted))
        self._since, self._written_at = 0, time.perf_counter()

    def _interval_after(self, took: float, step: float) -> float:
        """Returns the steps until the next snapshot.

        ``took``: the seconds that the last snapshot took; ``step``: the seconds of a step.
        """
        run = self._run
        # The first snapshot of a process takes longer than later ones, and any may meet a busy
        # machine.
        cost, most = (
            (took, _MOST_AFTER_FIRST) if run.took is None else (min(run.took, took), math.inf)
        )
        return min(
            max(cost / (_COST * max(step, 1e-6)), 1.0) if self._since else run.interval, most
        )

    def _await_steps(self) -> None:
        """Waits for the steps that a device still computes, whose time is none of a snapshot's."""
        backend.active().settle(self._model)
        # The first variable of an optimizer counts its steps. Without one, reading all of the state
        # waits as well.
        with self._session.ledger.span("compute"):
            for optimizer in state.optimizers_of(self._model):
                for count in state.variables_of(optimizer)[:1]:
                    state.memory_of(count)

    def _check_equal(self) -> None:
        """Raises DivergenceError where the workers differ in what they are about to store."""
        with self._session.ledger.span("exchange"):
            state.check_equal(
                self._session.comm, snapshot.equal_variables(self._model), self._place.trained
            )

    def _write(self, logs: Logs) -> bool:
        run = self._run
        run.number += 1
        alike: Arrays = {}
        piece = b""
        try:
            alike, piece = self._state(logs)
        except Exception as error:
            _complain(error)
        pieces = self._kept_here(piece)
        if not all(pieces.values()):
            return False
        try:
            run.write(self._place, alike, pieces)
        except Exception as error:
            _complain(error)
            return False
        run.last = self._place
        return True

    def _state(self, logs: Logs) -> tuple[Arrays, bytes]:
        """Returns this worker's part of what all hold alike, and all that it has for itself."""
        place = self._session.world
        alike, mine, facts = snapshot.variables(self._model, place.local_rank, place.local_size)
        mine |= self._training.arrays() | compression.memories(
            state.held_objects(snapshot.trainable(self._model))
        )
        facts |= {
            "place": dataclasses.asdict(self._place),
            "callbacks": snapshot.callbacks(self._callbacks(), self._begun_with, mine),
            "drawn": backend.active().count_draws(),
            "stop": bool(getattr(self._model, "stop_training", False)),
            "climb": learning_rate.facts_of(getattr(self._model, "optimizer", None)),
            "counters": self._training.counters(),
            "logs": {
                name: float(value)
                for name, value in dict[str, Any](logs or {}).items()
                if np.ndim(value) == 0
            },
        }
        return alike, encoding.pack(mine, facts)

    def _kept_here(self, piece: bytes) -> dict[int, bytes]:
        """Returns the pieces, by rank, that this worker keeps."""
        # With those of its host's other workers they are all pieces: one host that is left has a
        # whole snapshot.
        place, comm = self._session.world, self._session.comm
        if place.node_count == 1:
            return {place.rank: piece}
        ends = np.cumsum(comm.agree("length of a snapshot", len(piece))).astype(int)
        everyone = comm.allgather(np.frombuffer(piece, np.uint8))
        pieces = [part.tobytes() for part in np.split(everyone, ends[:-1])]
        return {
            rank: pieces[rank] for rank in range(place.local_rank, place.size, place.local_size)
        }


def _complain(error: Exception) -> None:
    print(f"syrtos: no more snapshots: {type(error).__name__}: {error}", file=sys.stderr)
    if not isinstance(error, MemoryError):
        traceback.print_exc()


class _Replay:
    """Replaces the list of callbacks while a resumed `fit` skips batches that it was trained on."""

    def __init__(
        self,
        everyone: CallbackList,
        model: Model,
        training: CountedTraining,
        place: Progress,
        logs: dict[str, float],
        protection: Protection,
    ) -> None:
        """``logs``: those of the last step."""
        self._everyone, self._callbacks, self._training = everyone, everyone.callbacks, training
        self._model, self._place, self._logs, self._protection = model, place, logs, protection
        self._calls = self._epoch = 0
        self._evaluated = False
        self._train, self._test = model.train_function, model.test_function
        model.train_function, model.test_function = self._skip_training, self._skip_test
        everyone.callbacks = [self]

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith(("on_", "set_")):
            return lambda *args, **kwargs: None
        raise AttributeError(name)

    def _skip_training(self, *given: Any) -> object:
        """Stands for the training function: draws batches, and leaves out all steps but the first.

        It takes batches, and with JAX before them a state, which it gives back.
        """
        # The first step is computed: it builds what is built by a first step.
        assert self._train is not None
        if self._calls:
            result = self._skip(self._logs, *given)
        else:
            result = self._train(*given)
            if self._place.calls == 1:
                result = (self._logs, *result[1:]) if len(given) > 1 else self._logs
        # After the call: one that finds no batch raises, and does not count.
        self._calls += 1
        return result

    def _skip_test(self, *given: Any) -> object:
        """Stands for the function that evaluates: computes the first step alone.

        The first step is computed for what it builds.
        """
        if self._evaluated:
            return self._skip({}, *given)
        self._evaluated = True
        assert self._test is not None
        return self._test(*given)

    def _skip(self, logs: dict[str, float], *given: Any) -> object:
        backend.active().skip_batches(
            given[-1], int(getattr(self._model, "steps_per_execution", None) or 1)
        )
        return (logs, *given[:-1]) if len(given) > 1 else logs

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch
        self._training.data_epoch_begins(epoch, self._everyone.params)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Makes the function that evaluates, and puts `_skip_test` in its place again."""
        # Keras has left out to make the function, for there was one. Later it can't be made: with
        # JAX a step takes the variables' values away.
        self._model.test_function = self._test
        self._model.make_test_function()
        self._test, self._model.test_function = self._model.test_function, self._skip_test

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._training.data_step_is_over(batch)
        if self._calls != self._place.calls:
            return
        if not self._place.epoch_ended:
            self._end()
        elif self._place.cut:
            self._model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._training.data_epoch_ends()
        if self._calls == self._place.calls:
            if not self._place.ended:
                self._end()
            else:
                self._model.stop_training = True

    def on_train_end(self, logs: Logs = None) -> None:
        if self._calls != self._place.calls or not self._place.ended:
            raise SnapshotError(
                f"The data of `fit` ended after {self._calls} batches, and {self._place.calls} had"
                " been trained on when the snapshot was made. A run is continued with the data"
                " that it began with. Start it anew with another --run-dir."
            )
        self._end()

    def _end(self) -> None:
        if self._calls and self._epoch != self._place.epoch:
            raise SnapshotError(
                f"Step {self._calls} of `fit` is in epoch {self._epoch + 1}, and was in epoch"
                f" {self._place.epoch + 1} when the snapshot was made: the script makes other"
                " batches than before. Where they depend on the number of workers, continue with"
                " as many as before; else begin anew with another --run-dir."
            )
        self._model.train_function, self._model.test_function = self._train, self._test
        self._everyone.callbacks = self._callbacks
        self._protection.put_back()
