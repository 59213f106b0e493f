"""Skips the batches of a `fit` that were trained on in the generation before."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from syrtos.checkpoint.encoding import Arrays
from syrtos.comm.world import Session
from syrtos.errors import SnapshotError
from syrtos.keras import backend, fitting, keras_internals
from syrtos.keras.recovery.snapshot_store import Progress

if TYPE_CHECKING:
    from syrtos.keras.protocols import CallbackList, Logs, Model, TrainingParams
    from syrtos.settings import OtherBatches

# Seconds that a data set's threads may take to read ahead, and between two looks.
_PATIENCE, _LOOK = 60.0, 0.02


@dataclasses.dataclass(frozen=True)
class Batches:
    """The batches of a `fit`; a number that is not known is 0.

    Attributes:
        rows: rows of the first step, of all workers.
        steps: steps of an epoch.
        workers: the number of workers.
    """

    rows: float = 0.0
    steps: int = 0
    workers: int = 0

    def difference(self, now: Batches) -> str:
        """Returns how the batches of ``now`` differ, as the start of a sentence; empty if alike."""
        # Where each worker computes whole batches, more workers have more rows.
        if self.workers == now.workers and 0 < self.rows != now.rows > 0:
            return (
                f"a step of `fit` trains on {now.rows:,.0f} rows, and trained on {self.rows:,.0f}"
            )
        if 0 < self.steps != now.steps > 0:
            return f"an epoch of `fit` has {now.steps:,} steps, and had {self.steps:,}"
        return ""


def read_batches(session: Session, samples: float, params: TrainingParams) -> Batches:
    """Returns the batches of a `fit` whose first step was made just now, on all workers together.

    Args:
        session: this worker's.
        samples: this worker's rows of that step.
        params: what Keras tells callbacks.
    """
    rows = sum(session.comm.agree("rows of the first step", samples))
    return Batches(rows, int(params.get("steps") or 0), session.world.size)


def batches_from(facts: Mapping[str, object]) -> Batches:
    """Returns the batches that a snapshot was made with; unknown ones where it has none."""
    kept = facts.get("batches")
    return Batches(**kept) if isinstance(kept, dict) else Batches()


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


class CommittedState(Protocol):
    """A state that was committed, and that training goes on from."""

    def first_step_made(self, samples: float) -> str:
        """Returns how the batches differ from those that the state was committed with.

        The text is empty if they are alike. ``samples``: this worker's rows of the first step.
        """
        ...

    def put_back(self, counters: dict[str, int] | None = None) -> None:
        """Restores the state, and possibly other ``counters`` than were committed."""
        ...


class SkippedTraining:
    """Replaces the list of callbacks while a resumed `fit` skips batches that it was trained on."""

    def __init__(
        self,
        session: Session,
        everyone: CallbackList,
        model: Model,
        training: CountedTraining,
        place: Progress,
        logs: dict[str, float],
        state: CommittedState,
        batches: OtherBatches,
    ) -> None:
        """Puts itself in the place of all callbacks.

        Args:
            session: this worker's.
            everyone: the list of all callbacks.
            model: the model.
            training: counts the steps.
            place: how far the run had come.
            logs: those of the last step.
            state: the state that is put back at the end.
            batches: the treatment of batches that differ from those of before.
        """
        self._session = session
        self._everyone, self._callbacks, self._training = everyone, everyone.callbacks, training
        self._model, self._place, self._logs, self._state = model, place, logs, state
        self._batches, self._has_others = batches, False
        self._first_samples = 0.0  # rows of this worker in the first step
        # steps before the epoch, and in it
        self._before = self._in_epoch = 0
        self._calls = self._epoch = 0
        self._evaluated, self._test_calls = False, 0
        # Over the data of training: that over validation data is made later.
        self._iterator = fitting.iterator_in_use()
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
            steps = self._in_epoch + keras_internals.steps_in_call(self._model)
            if steps >= (self._everyone.params.get("steps") or 0):
                _await_read_ahead(self._iterator)
            backend.active().leave_out_step()
        else:
            clock = self._session.ledger.clock
            before = clock.top.samples
            result = self._train(*given)
            count = keras_internals.steps_in_call(self._model)
            self._first_samples = (clock.top.samples - before) / count
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
            result = self._skip({}, *given)
            self._test_calls += 1
            iterator = fitting.iterator_in_use()
            steps = self._test_calls * keras_internals.steps_in_call(self._model)
            if steps >= (keras_internals.length_of(iterator) or 0):
                _await_read_ahead(iterator)
            return result
        self._evaluated, self._test_calls = True, 1
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
        backend.active().epoch_begins(is_left_out=True)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Makes the function that evaluates, and puts `_skip_test` in its place again."""
        self._test_calls = 0
        # Keras has left out to make the function, for there was one. Later it can't be made: with
        # JAX a step takes the variables' values away.
        self._model.test_function = self._test
        self._model.make_test_function()
        self._test, self._model.test_function = self._model.test_function, self._skip_test

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._training.data_step_is_over(batch)
        self._in_epoch = batch + 1
        if self._calls == 1:
            self._compare_batches()
        if self._has_others:
            if self._last_epoch() < self._place.first_epoch:
                self._end()
            return
        if self._calls != self._place.calls:
            return
        if not self._place.epoch_ended:
            self._end()
        elif self._place.cut:
            self._model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._training.data_epoch_ends()
        self._before, self._in_epoch = self._before + self._in_epoch, 0
        is_there = (
            epoch == self._last_epoch() if self._has_others else self._calls == self._place.calls
        )
        if is_there:
            if not self._place.ended:
                self._end(epoch_ended=True)
            else:
                self._model.stop_training = True

    def on_train_end(self, logs: Logs = None) -> None:
        is_there = self._has_others or self._calls == self._place.calls
        if not is_there or not self._place.ended:
            raise SnapshotError(
                f"`fit` ended after {self._calls} batches, and {self._place.calls} had been trained"
                " on when the snapshot was made. A run is continued with the data that it began"
                " with, and no fewer epochs. Start it anew with another --run-dir."
            )
        self._end(epoch_ended=True)

    def _compare_batches(self) -> None:
        """Compares the batches with those that the snapshot was made with.

        Raises:
            SnapshotError: they are others, and nobody has asked to go on with them.
        """
        different = self._state.first_step_made(self._first_samples)
        if not different or self._batches == "ignored":
            return
        if self._batches == "compared":
            raise SnapshotError(
                f"{different[0].upper()}{different[1:]} when the snapshot was made. Give the script"
                " the batches that it had; or go on from the beginning of an epoch with those that"
                " it has now: `syrtos resume RUN_DIR --force`."
            )
        self._has_others = True
        if self._session.world.rank == 0:
            goes_on = f": it goes on from the beginning of epoch {self._last_epoch() + 2}"
            print(f"syrtos: {different} before{goes_on * (not self._place.ended)}", file=sys.stderr)

    def _last_epoch(self) -> int:
        """Returns the last epoch that is left out where batches are others: the last whole one."""
        return self._place.epoch - (not (self._place.epoch_ended or self._place.ended))

    def _end(self, epoch_ended: bool = False) -> None:
        place, counters = self._place, None
        if self._has_others:
            steps = self._before + self._in_epoch
            place.calls, place.epoch, place.epoch_ended = self._calls, self._epoch, epoch_ended
            counters = {"steps": steps, "epoch": self._epoch, "epoch_began_at": self._before}
        elif self._calls and self._epoch != place.epoch:
            raise SnapshotError(
                f"Step {self._calls} of `fit` is in epoch {self._epoch + 1}, and was in epoch"
                f" {place.epoch + 1} when the snapshot was made: the script makes other"
                " batches than before. Where they depend on the number of workers, continue with"
                " as many as before; else begin anew with another --run-dir."
            )
        self._model.train_function, self._model.test_function = self._train, self._test
        self._everyone.callbacks = self._callbacks
        self._state.put_back(counters)


def _await_read_ahead(iterator: object) -> None:
    """Waits until the threads of a `PyDataset` have read as far ahead as they may.

    Keras keeps what was read ahead at the end of an epoch for the next one. Steps take long enough
    for the threads to come so far; steps that are left out do not.
    """
    until = time.monotonic() + _PATIENCE
    while keras_internals.is_reading_ahead(iterator) and time.monotonic() < until:
        time.sleep(_LOOK)
    if time.monotonic() >= until:
        print(
            f"syrtos: the threads of a PyDataset did not read ahead within {_PATIENCE:.0f} s: the next"
            " epoch may have batches in another order than in an undisturbed run.",
            file=sys.stderr,
        )
    if keras_internals.enqueuer_of(iterator) is not None:
        time.sleep(_LOOK)  # the thread has one batch more in its hands than the queue
