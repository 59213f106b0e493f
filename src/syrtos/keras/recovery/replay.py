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
from typing import TYPE_CHECKING, Any

import numpy as np

from syrtos.checkpoint import encoding
from syrtos.checkpoint.encoding import Arrays
from syrtos.comm import compression, world
from syrtos.comm.world import Session
from syrtos.keras import backend, fitting, keras_internals
from syrtos.keras.features import learning_rate
from syrtos.keras.recovery import snapshot_store
from syrtos.keras.recovery.skipping import (
    Batches,
    CountedTraining,
    SkippedTraining,
    batches_from,
    read_batches,
)
from syrtos.keras.recovery.snapshot_store import Progress, SnapshotStore
from syrtos.keras.replica import snapshot, state

if TYPE_CHECKING:
    from syrtos.keras.protocols import CallbackList, Logs, Model

# Snapshots take at most this part of the time (CheckFreq's bound; Mohan et al., FAST 2021).
_COST = 0.035
# So many steps lie at most between the first two snapshots of a process.
_MOST_AFTER_FIRST = 4.0


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
    if run is not None and fitting.depth() > 1:
        run.has_inner = True
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
        self._batches: Batches | None = None  # of this `fit`, once its first step is made
        self._written_at = time.perf_counter()
        # plain attributes of callbacks that `on_train_begin` has left as they were
        self._begun_with = [snapshot.plain_attributes(callback) for callback in self._callbacks()]
        self._committed = run.committed_state(run.fits)
        if self._committed:
            facts = self._committed.facts
            facts["callbacks"] = snapshot.callbacks_kept(self._callbacks(), facts)
            run.logs |= snapshot.keep_written(self._callbacks(), facts["callbacks"])
        else:
            run.keep_ended()
        if run.fits >= run.found:
            # From here on training is done again; what is before it no later `fit` writes anew.
            snapshot.cut_logs(run.logs)
            run.logs = {}

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
            backend.active().epoch_computed()
            return
        place = self._place = self._committed.place
        backend.active().begin_replay(self._committed.mine)
        self._model._initial_epoch = place.first_epoch or None
        SkippedTraining(
            self._session,
            self._everyone,
            self._model,
            self._training,
            place,
            self._committed.facts["logs"],
            self,
            self._run.batches,
        )

    def first_step_made(self, samples: float) -> str:
        """Notes the batches of this `fit` once its first step is made, before anything is put back.

        ``samples``: this worker's rows of that step.

        Returns how they differ from those that the snapshot was made with; empty if they are alike.
        """
        self._batches = read_batches(self._session, samples, self._everyone.params)
        if self._committed is None:
            return ""
        return batches_from(self._committed.facts).difference(self._batches)

    def put_back(self, counters: dict[str, int] | None = None) -> None:
        """Restores the state as it was committed, and possibly other ``counters``."""
        assert self._committed is not None
        found, self._committed = self._committed, None
        with self._session.ledger.span("checkpoint"):
            snapshot.put_back_variables(self._model, found.alike, found.mine, found.facts)
            compression.put_back(state.held_objects(snapshot.trainable(self._model)), found.mine)
            snapshot.put_back_callbacks(self._callbacks(), found.facts["callbacks"], found.mine)
        if counters is None:
            backend.active().put_back_draws(found.mine)
        if found.facts.get("inner") and not self._run.has_inner:
            self._run.has_inner = True
            _tell_inner(self._session)
        self._session.ledger.say(trained=found.place.trained)
        self._model.stop_training = found.facts["stop"]
        learning_rate.put_back(self._model.optimizer, found.facts["climb"])
        self._training.count_from(counters or found.facts["counters"], found.mine)
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
        backend.active().callbacks_ended()
        cut = bool(getattr(self._model, "stop_training", False))
        calls, trained = self._place.calls + 1, self._place.trained + steps
        self._place = dataclasses.replace(
            self._place, calls=calls, trained=trained, epoch=epoch, epoch_ended=False, cut=cut
        )
        self._since += 1
        if self._batches is None:
            count = keras_internals.steps_in_call(self._model)
            self.first_step_made(self._session.ledger.clock.top.samples / count)
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
        mine |= self._training.arrays() | backend.active().draws()
        mine |= compression.memories(state.held_objects(snapshot.trainable(self._model)))
        facts |= {
            "place": dataclasses.asdict(self._place),
            "callbacks": snapshot.callbacks(self._callbacks(), self._begun_with, mine),
            "stop": bool(getattr(self._model, "stop_training", False)),
            "climb": learning_rate.facts_of(getattr(self._model, "optimizer", None)),
            "counters": self._training.counters(),
            "inner": self._run.has_inner,
            "batches": dataclasses.asdict(self._batches or Batches()),
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


def _tell_inner(session: Session) -> None:
    if session.world.rank == 0:
        print(
            "syrtos: a callback has called `fit`. The models that callbacks have trained are as the"
            " script made them, and random numbers that their data drew are missing: the result may"
            " differ from that of an undisturbed run.",
            file=sys.stderr,
        )


def _complain(error: Exception) -> None:
    print(f"syrtos: no more snapshots: {type(error).__name__}: {error}", file=sys.stderr)
    if not isinstance(error, MemoryError | OSError):  # a full disk, or a limit: no defect
        traceback.print_exc()
